"""A device's meters in order of preference: when one falls silent, the next one that answers takes over.

A round is counted by one meter alone, so that its joules have one source: meters change when a round begins and never
within it. What the lost meter missed stays unknown.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from sparsyedge.edge.device.energy import NO_SETTINGS, EnergyMeter, MeterSettings, NullMeter, find_meters, named_meter
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.phase_costs import Kind

__all__ = ["MeterChain", "open_chain"]

log = logging.getLogger(__name__)

RETRY_S = 60.0
"""How often to look whether a better meter is back."""
PROOF_S = 0.02
"""Two readings this far apart show whether a meter answers."""


class MeterChain:
    """The meters of one device as one meter; `name` and `kind` are those of the one that counts now."""

    name: str
    kind: Kind
    priority: int = 0

    def __init__(
        self,
        meters: Sequence[EnergyMeter],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """The preferred meter first; without any, nothing is counted."""
        self._meters = tuple(meters)
        self._clock, self._sleep = clock, sleep
        self._joules_before = self._lost_before_s = 0.0
        self._tells_calibrated = True
        self._looked_s = clock()
        self._use(self._meters[0] if self._meters else NullMeter())

    @classmethod
    def probe(cls, root: Path) -> Self | None:
        """A chain of the sensors under `root`, or None if there is none."""
        meters = find_meters(root, NO_SETTINGS)
        return cls(meters) if meters else None

    @property
    def sample_hz(self) -> float:
        """Measured readings per second of the meter that counts now."""
        return self._current.sample_hz

    @property
    def lost_s(self) -> float:
        """Seconds so far in which the meter that counted then was silent."""
        return self._lost_before_s + self._current.lost_s - self._lost_at_start_s

    def start(self) -> None:
        """Start the meter that counts."""
        self._current.start()

    def stop(self) -> None:
        """Stop the meter that counts."""
        self._current.stop()

    def read_joules(self) -> float:
        """Joules so far, each from the meter that counted then; never falls."""
        return self._joules_before + self._current.read_joules() - self._joules_at_start

    def begin_round(self, *, tells_calibrated: bool = True) -> None:
        """Let the first meter that answers count from here on.

        Asks no meter while the preferred one has not missed a moment. A coordinator that does not know of calibrated
        joules (`tells_calibrated`) is told that they are modelled.
        """
        self._tells_calibrated = tells_calibrated
        if self._is_time_to_look():
            self._looked_s = self._clock()
            best = next((each for each in self._meters if self._answers(each)), NullMeter())
            if best.name != self._current.name:
                self._change_to(best)
            self._lost_seen_s = self._current.lost_s
        self.kind = self._told_kind()

    def _is_time_to_look(self) -> bool:
        if not self._meters:
            return False
        if self._current.lost_s > self._lost_seen_s:
            return True
        return self._current is not self._meters[0] and self._clock() - self._looked_s >= RETRY_S

    def _answers(self, meter: EnergyMeter) -> bool:
        """Whether the meter counts right now; starts it for that, and stops it again if it does not count the round."""
        meter.start()
        meter.read_joules()
        lost_s = meter.lost_s
        self._sleep(PROOF_S)
        meter.read_joules()
        answers = meter.lost_s <= lost_s
        if not answers and meter is not self._current:
            meter.stop()
        return answers

    def _change_to(self, meter: EnergyMeter) -> None:
        before = self._current
        self._joules_before = self.read_joules()
        self._lost_before_s = self.lost_s
        before.stop()
        is_better = before.kind == "none" or (
            meter in self._meters and before in self._meters[self._meters.index(meter) :]
        )
        reason = f"{meter.name} answers again" if is_better else f"{before.name} has fallen silent"
        log.warning(
            "energy meter: %s; from this round on %s (%s) counts; idle power is known only if it measured that",
            reason,
            meter.name,
            meter.kind,
        )
        self._use(meter)

    def _use(self, meter: EnergyMeter) -> None:
        self._current = meter
        self._joules_at_start = meter.read_joules()
        self._lost_at_start_s = self._lost_seen_s = meter.lost_s
        self.name = meter.name
        self.kind = self._told_kind()

    def _told_kind(self) -> Kind:
        kind = self._current.kind
        return "modelled" if kind == "calibrated" and not self._tells_calibrated else kind


def open_chain(
    names: str | Sequence[str] = "auto",
    *,
    root: Path = Path("/sys"),
    settings: MeterSettings = NO_SETTINGS,
) -> MeterChain:
    """Open the named meters as one and start it; stop it when done.

    Of several names those without a sensor are left out with a warning; raises ConfigError if that leaves none.
    """
    meters = _meters((names,) if isinstance(names, str) else tuple(names), root, settings)
    chain = MeterChain(meters)
    chain.start()
    if meters:
        spare = f"; then {', '.join(each.name for each in meters[1:])}" if meters[1:] else ""
        log.info("energy meter: %s (%s)%s", chain.name, chain.kind, spare)
    return chain


def _meters(names: tuple[str, ...], root: Path, settings: MeterSettings) -> list[EnergyMeter]:
    meters: list[EnergyMeter] = []
    errors: list[str] = []
    for name in names:
        try:
            found = find_meters(root, settings) if name == "auto" else [named_meter(name, root, settings)]
        except ConfigError as error:
            if len(names) == 1:
                raise
            log.warning("%s; it is left out", error)
            errors.append(str(error))
            continue
        known = {each.name for each in meters}
        meters += [each for each in found if each.kind != "none" and each.name not in known]
    if errors and len(errors) == len(names):
        raise ConfigError(f"none of the energy meters {', '.join(names)} can be used: {'; '.join(errors)}")
    return meters
