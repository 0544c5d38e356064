"""What a round costs a device: seconds and joules per phase, and peak memory.

This module knows no sensors. A meter is any class that satisfies `EnergyMeter` and is registered in the entry-point
group `sparsyedge.meters`; ours are in the `hardware` folder. Reports always carry the meter's name, kind and sample
rate along with the joules, so nobody mistakes modelled joules for measured ones.
"""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Protocol, Self, cast

from sparsyedge.edge.config import MetersConfig
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.phase_costs import Kind, Phase, PhaseCost

__all__ = [
    "NO_SETTINGS",
    "EnergyMeter",
    "MeterSettings",
    "NullMeter",
    "PhaseRecorder",
    "above_idle",
    "find_meters",
    "joules_mark",
    "joules_text",
    "measure_idle",
    "meter_names",
    "meter_text",
    "named_meter",
    "open_meter",
    "peak_rss_mb",
]

log = logging.getLogger(__name__)

_GROUP = "sparsyedge.meters"
# "auto" takes the most trustworthy kind that the device has, but never a model: users must ask for that by name.
_KIND_ORDER: tuple[Kind, ...] = ("measured-board", "measured-rails", "battery")

LOST_SHARE = 0.1
"""If the sensor is silent for more than this share of a phase, the phase's joules are unknown."""


@dataclass(frozen=True)
class MeterSettings:
    """What device.toml says to meters that cannot find their sensor by themselves."""

    device: str = ""
    """The device's name; empty for a program that is none, such as a benchmark."""
    meters: MetersConfig = field(default_factory=MetersConfig)


NO_SETTINGS = MeterSettings()


class EnergyMeter(Protocol):
    """A source of joules; `kind` says how far to trust it.

    A class may also have `configured(root, settings) -> Self | None`, which then stands in for `probe`, and a text
    `needs`: what is missing where it finds no sensor.
    """

    name: str
    kind: Kind
    priority: int
    """Which meter "auto" takes if several of one kind find a sensor: the highest, then the first by name."""

    @property
    def sample_hz(self) -> float:
        """Measured readings per second so far; 0 for a meter that counts energy directly."""

    @property
    def lost_s(self) -> float:
        """Seconds so far in which the sensor did not answer, or did not show the device's own power."""

    @classmethod
    def probe(cls, root: Path) -> Self | None:
        """A meter for the sensors under `root` (/sys on a device), or None if it can read none."""

    def start(self) -> None:
        """Start counting; a second call does nothing. A meter that integrates power starts its thread here."""

    def stop(self) -> None:
        """Stop counting and end the meter's thread, if it has one; the total stays readable."""

    def read_joules(self) -> float:
        """Joules counted since the meter was opened; never falls."""


class NullMeter:
    """Measures nothing; reports say its joules are unknown, not zero."""

    name: str = "none"
    kind: Kind = "none"
    priority: int = 0
    sample_hz: float = 0.0
    lost_s: float = 0.0

    @classmethod
    def probe(cls, root: Path) -> Self | None:
        """Always a meter, whatever `root` holds."""
        return cls()

    def start(self) -> None:
        """Nothing to start."""

    def stop(self) -> None:
        """Nothing to stop."""

    def read_joules(self) -> float:
        """Always 0."""
        return 0.0


class PhaseRecorder:
    """Adds up what each phase of a round costs; not thread-safe, so use one per thread."""

    def __init__(
        self,
        meter: EnergyMeter,
        *,
        on_phase: Callable[[Phase], None] = lambda phase: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Calls `on_phase` when a phase begins."""
        self.meter = meter
        self._on_phase = on_phase
        self._clock = clock
        self._costs: dict[str, PhaseCost] = {}
        self._open: Phase | None = None
        self._since = (0.0, 0.0, 0.0)

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Charge the time and energy of the `with` block to `name`, on top of earlier blocks with that name."""
        if self._open is not None:
            raise RuntimeError(f"phase {name} begins inside phase {self._open}: its joules would be counted twice")
        self._open = name
        self._on_phase(name)
        self._since = self._reading()
        try:
            yield
        finally:
            self._charge(name)
            self._open = None

    def snapshot(self) -> dict[str, PhaseCost]:
        """A copy of the costs so far, including the open phase, in the order in which phases were first charged."""
        if self._open is not None:
            self._charge(self._open)
        return dict(self._costs)

    def add(self, costs: Mapping[str, PhaseCost]) -> None:
        """Add what an earlier process spent on the same round."""
        for name, cost in costs.items():
            self._add(name, cost.seconds, cost.joules)

    def _reading(self) -> tuple[float, float, float]:
        """Clock seconds, meter joules, and seconds lost by the meter."""
        return self._clock(), self.meter.read_joules(), self.meter.lost_s

    def _charge(self, name: str) -> None:
        """Add the cost since the phase began or was last charged."""
        since, self._since = self._since, self._reading()
        seconds, joules, lost_s = (now - before for now, before in zip(self._since, since, strict=True))
        unknown = self.meter.kind == "none" or lost_s > LOST_SHARE * seconds
        self._add(name, seconds, None if unknown else joules)

    def _add(self, name: str, seconds: float, joules: float | None) -> None:
        before = self._costs.get(name, PhaseCost(0.0, 0.0))
        # One unknown part makes the sum unknown.
        total = None if joules is None or before.joules is None else before.joules + joules
        self._costs[name] = PhaseCost(before.seconds + seconds, total)

    def reset(self) -> None:
        """Forget all costs, for the next round."""
        self._costs.clear()


def measure_idle(meter: EnergyMeter, seconds: float, *, sleep: Callable[[float], None] = time.sleep) -> float | None:
    """Watts that the device draws while this process sleeps for `seconds`; None if the meter cannot tell.

    A model counts only work, so its idle power is 0.
    """
    if meter.kind == "modelled":
        return 0.0
    if meter.kind == "none" or seconds <= 0:
        return None
    started_s, started_joules, started_lost_s = time.monotonic(), meter.read_joules(), meter.lost_s
    sleep(seconds)
    joules, elapsed_s = meter.read_joules() - started_joules, time.monotonic() - started_s
    return None if meter.lost_s - started_lost_s > LOST_SHARE * elapsed_s else joules / elapsed_s


def above_idle(cost: PhaseCost, idle_w: float | None) -> float | None:
    """Joules of a phase beyond what the device would have drawn when idle; None if either is unknown."""
    return None if cost.joules is None or idle_w is None else max(cost.joules - idle_w * cost.seconds, 0.0)


def joules_mark(kind: str) -> str:
    """What stands beside joules that nobody measured: ` modelled`, ` calibrated`, or nothing."""
    return f" {kind}" if kind in ("modelled", "calibrated") else ""


def joules_text(joules: float, kind: str, *, digits: int = 1) -> str:
    """Joules as text for people; always marks those that nobody measured."""
    return f"{joules:.{digits}f} J{joules_mark(kind)}"


def meter_text(source: str, kind: str, *, hz: float, idle_w: float | None) -> str:
    """Where joules come from, as text for people: kind, source, sample rate and idle power."""
    details = [source, *([f"{hz:.0f} Hz"] if hz else []), *([f"idle {idle_w:.2f} W"] if idle_w else [])]
    return f"{kind} ({', '.join(details)})"


def open_meter(name: str = "auto", *, root: Path = Path("/sys"), settings: MeterSettings = NO_SETTINGS) -> EnergyMeter:
    """Open and start the named meter; stop it when done.

    "auto" takes the best working sensor on this device, or "none" if there is no sensor; "none" counts nothing.
    """
    meter = (
        next(iter(find_meters(root, settings)), NullMeter()) if name == "auto" else named_meter(name, root, settings)
    )
    if meter.kind == "none":
        return meter
    meter.start()
    log.info("energy meter: %s (%s)", meter.name, meter.kind)
    return meter


def find_meters(root: Path, settings: MeterSettings) -> list[EnergyMeter]:
    """The working sensors of this device, the best first; no models, and none is started.

    Probes every meter before comparing kinds: the same class may measure a whole board here and rails elsewhere.
    """
    meters = [_probe_quietly(meter_class, root, settings) for meter_class in _candidates(_entry_points())]
    return sorted((each for each in meters if each is not None and each.kind in _KIND_ORDER), key=_preference)


def named_meter(name: str, root: Path, settings: MeterSettings) -> EnergyMeter:
    """The named meter, not started; raises ConfigError if there is none of that name or it finds no sensor."""
    if name == "none":
        return NullMeter()
    entries = _entry_points()
    if name not in entries:
        raise ConfigError(f"energy meter {name!r} is unknown; known are {', '.join(meter_names())}")
    entry = entries[name]
    try:
        meter_class = cast("type[EnergyMeter]", entry.load())
        meter = _probe(meter_class, root, settings)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"energy meter {name!r} ({entry.value}) cannot be used: {error!r}") from error
    if meter is None:
        missing = getattr(meter_class, "needs", "check the driver and the permissions")
        raise ConfigError(
            f"energy meter {name!r} finds no sensor that it can read under {root}; {missing}, or choose auto or none"
        )
    return meter


def meter_names() -> list[str]:
    """The names that `open_meter` accepts, whether or not this device has the sensor."""
    return ["auto", "none", *sorted(_entry_points())]


def peak_rss_mb() -> float:
    """The most memory this process has held so far, in MB (10^6 bytes)."""
    # ru_maxrss survives exec: a device started by a large process would report that process's peak. VmHWM does not.
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    except OSError:
        log.debug("/proc/self/status cannot be read; using getrusage")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def _entry_points() -> dict[str, metadata.EntryPoint]:
    return {entry.name: entry for entry in metadata.entry_points(group=_GROUP)}


def _candidates(entries: dict[str, metadata.EntryPoint]) -> Iterator[type[EnergyMeter]]:
    for entry in entries.values():
        try:
            yield cast("type[EnergyMeter]", entry.load())
        except Exception as error:  # somebody else's package: whatever it raises, the device must still train
            log.warning("energy meter %s (%s) cannot be loaded and is left out: %r", entry.name, entry.value, error)


def _preference(meter: EnergyMeter) -> tuple[int, int, str]:
    priority = getattr(meter, "priority", 0)
    # A meter from another package may have no priority, or an invalid one.
    return _KIND_ORDER.index(meter.kind), -priority if isinstance(priority, int) else 0, meter.name


def _probe(meter_class: type[EnergyMeter], root: Path, settings: MeterSettings) -> EnergyMeter | None:
    configured = getattr(meter_class, "configured", None)
    return meter_class.probe(root) if configured is None else cast("EnergyMeter | None", configured(root, settings))


def _probe_quietly(meter_class: type[EnergyMeter], root: Path, settings: MeterSettings) -> EnergyMeter | None:
    try:
        return _probe(meter_class, root, settings)
    except ConfigError as error:
        log.warning("%s; it is left out", error)
    except Exception as error:  # as above: a broken sensor costs the joules, not the training
        log.warning("energy meter %s failed while looking for its sensor and is left out: %r", meter_class.name, error)
    return None
