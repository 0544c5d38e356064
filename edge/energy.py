"""What a round costs a device: seconds and joules per phase, and the peak of its memory.

Sensors are not known here. A meter is any class that satisfies `EnergyMeter` and is named in the entry-point group
`sparsyedge.meters`; the ones that come along live in the `hardware` folder. Joules never travel without the name and
the kind of their meter, since a model's joules must not be taken for measured ones.
"""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Literal, Protocol, Self, cast

import msgspec

from sparsyedge.edge.errors import ConfigError

__all__ = [
    "EnergyMeter",
    "Kind",
    "NullMeter",
    "Phase",
    "PhaseCost",
    "PhaseRecorder",
    "meter_names",
    "open_meter",
    "peak_rss_mb",
]

log = logging.getLogger(__name__)

Kind = Literal["measured", "battery", "modelled", "none"]
Phase = Literal["download", "train", "prune", "encode", "upload"]

_GROUP = "sparsyedge.meters"
# "auto" takes the most trustworthy kind that the device has. Within a kind RAPL goes first: it measures the processor
# that trains, while a hwmon sensor of the same machine may sit on any rail.
_KIND_ORDER: tuple[Kind, ...] = ("measured", "battery", "modelled", "none")
_NAME_ORDER = ("rapl", "hwmon", "cpu-model")

NonNegative = Annotated[float, msgspec.Meta(ge=0)]


class EnergyMeter(Protocol):
    """A source of joules; `name` says which one, `kind` how far to trust it."""

    name: str
    kind: Kind

    @classmethod
    def probe(cls, root: Path) -> Self | None:
        """A meter for the sensors under `root` (/sys on a device), or None where it finds none that it can read."""

    def start(self) -> None:
        """Begin to count; a second call changes nothing. A meter that integrates power starts its thread here."""

    def stop(self) -> None:
        """Stop counting and end the meter's thread, if it has one; the total stays readable."""

    def read_joules(self) -> float:
        """Joules counted since the meter was opened; never falls."""


class NullMeter:
    """No energy at all: its joules are reported as unknown, not as zero."""

    name: str = "none"
    kind: Kind = "none"

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


class PhaseCost(msgspec.Struct, frozen=True):
    """Wall seconds and joules of one phase; joules are None where nothing measures or models them."""

    seconds: NonNegative
    joules: NonNegative | None


class PhaseRecorder:
    """Adds up what each phase of a round costs; not thread safe, one recorder belongs to one thread."""

    def __init__(self, meter: EnergyMeter, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.meter = meter
        self._clock = clock
        self._costs: dict[str, PhaseCost] = {}
        self._open: Phase | None = None
        self._since = (0.0, 0.0)

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Charge the time and energy of the `with` block to `name`, on top of earlier blocks of that name."""
        if self._open is not None:
            raise RuntimeError(f"phase {name} begins inside phase {self._open}: its joules would be counted twice")
        self._open = name
        self._since = self._clock(), self.meter.read_joules()
        try:
            yield
        finally:
            self._charge(name)
            self._open = None

    def snapshot(self) -> dict[str, PhaseCost]:
        """The phases entered so far, in the order in which each was first left, and the one that is open; a copy."""
        if self._open is not None:
            self._charge(self._open)
        return dict(self._costs)

    def add(self, costs: Mapping[str, PhaseCost]) -> None:
        """Count what a process before this one has spent on the same round."""
        for name, cost in costs.items():
            self._add(name, cost.seconds, cost.joules or 0.0)

    def _charge(self, name: str) -> None:
        """Add what was spent since the phase began, or since it was last charged."""
        (started_s, started_joules), self._since = self._since, (self._clock(), self.meter.read_joules())
        self._add(name, self._since[0] - started_s, self._since[1] - started_joules)

    def _add(self, name: str, seconds: float, joules: float) -> None:
        before = self._costs.get(name, PhaseCost(0.0, 0.0))
        total = None if self.meter.kind == "none" else (before.joules or 0.0) + joules
        self._costs[name] = PhaseCost(before.seconds + seconds, total)

    def reset(self) -> None:
        """Forget all costs, for the next round."""
        self._costs.clear()


def open_meter(name: str = "auto", *, root: Path = Path("/sys")) -> EnergyMeter:
    """The energy meter of that name, started; stop it when done.

    "auto" takes the best that works on this device, and "none" where nothing does; "none" counts nothing.
    """
    if name == "none":
        return NullMeter()
    entries = _entry_points()
    if name == "auto":
        meter = _best_meter(entries, root)
    elif name in entries:
        meter = _named_meter(entries[name], root)
    else:
        raise ConfigError(f"energy meter {name!r} is unknown; known are {', '.join(meter_names())}")
    meter.start()
    log.info("energy meter: %s (%s)", meter.name, meter.kind)
    return meter


def meter_names() -> list[str]:
    """What `open_meter` accepts, whether or not this device has the sensor."""
    return ["auto", "none", *sorted(_entry_points())]


def peak_rss_mb() -> float:
    """The most memory this process has held so far, in MB (10^6 bytes)."""
    # ru_maxrss survives exec: a device that a large process started would report that one's peak. VmHWM does not.
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    except OSError:
        log.debug("/proc/self/status cannot be read; using getrusage")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def _entry_points() -> dict[str, metadata.EntryPoint]:
    return {entry.name: entry for entry in metadata.entry_points(group=_GROUP)}


def _best_meter(entries: dict[str, metadata.EntryPoint], root: Path) -> EnergyMeter:
    for _, meter_class in sorted(_candidates(entries), key=itemgetter(0)):
        meter = _probe_quietly(meter_class, root)
        if meter is not None:
            return meter
    return NullMeter()


def _candidates(entries: dict[str, metadata.EntryPoint]) -> Iterator[tuple[tuple[int, int, str], type[EnergyMeter]]]:
    for entry in entries.values():
        try:
            meter_class = cast("type[EnergyMeter]", entry.load())
            yield _preference(meter_class), meter_class
        except Exception as error:  # somebody else's package: whatever it raises, the device must still train
            log.warning("energy meter %s (%s) cannot be loaded and is left out: %r", entry.name, entry.value, error)


def _preference(meter_class: type[EnergyMeter]) -> tuple[int, int, str]:
    name = meter_class.name
    return (
        _KIND_ORDER.index(meter_class.kind),
        _NAME_ORDER.index(name) if name in _NAME_ORDER else len(_NAME_ORDER),
        name,
    )


def _probe_quietly(meter_class: type[EnergyMeter], root: Path) -> EnergyMeter | None:
    try:
        return meter_class.probe(root)
    except Exception as error:  # as above: a broken sensor costs the joules, not the training
        log.warning("energy meter %s failed while looking for its sensor and is left out: %r", meter_class.name, error)
        return None


def _named_meter(entry: metadata.EntryPoint, root: Path) -> EnergyMeter:
    try:
        meter = cast("type[EnergyMeter]", entry.load()).probe(root)
    except Exception as error:
        raise ConfigError(f"energy meter {entry.name!r} ({entry.value}) cannot be used: {error!r}") from error
    if meter is None:
        raise ConfigError(
            f"energy meter {entry.name!r} finds no sensor that it can read under {root}; check the driver and the "
            "permissions, or choose auto or none"
        )
    return meter
