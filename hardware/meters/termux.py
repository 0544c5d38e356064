"""A phone's battery gauge, read with Termux:API's `termux-battery-status`, since Android hides /sys from programs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from sparsyedge.edge.device.termux_api import BatteryStatus, battery_status, find_command
from sparsyedge.edge.phase_costs import Kind
from sparsyedge.hardware.meters.battery_units import amperes, volts
from sparsyedge.hardware.meters.sampler import NoReading, PowerSampler

__all__ = ["TermuxMeter"]

SAMPLE_PERIOD_S = 5.0
"""Each reading starts processes on the phone; gauges refresh every few seconds at best."""
SILENCE_S = 60.0
"""How long a phone that did not answer is left alone: waiting for nothing would delay the end of every phase."""


class TermuxMeter(PowerSampler):
    """Joules drawn from the phone's battery, including screen and radio; counts nothing on a charger."""

    name: str = "termux"
    kind: Kind = "battery"

    def __init__(self, command: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(_Gauge(command, clock).read_watts, period_s=SAMPLE_PERIOD_S, clock=clock)

    @classmethod
    def probe(cls, root: Path) -> Self | None:
        """A meter if Termux:API reports a voltage and a current, else None; ignores `root`."""
        command = find_command("termux-battery-status")
        if command is None:
            return None
        try:
            status = battery_status(command)
        except (OSError, ValueError):
            return None
        return cls(command) if _has_gauge(status) else None


def _has_gauge(status: BatteryStatus) -> bool:
    """Whether the numbers can be a reading: Termux:API passes on -1 V and 0 A where Android gives none."""
    return bool(status.voltage and status.voltage > 0 and status.current)


class _Gauge:
    """The power that a phone's battery gives, in watts."""

    def __init__(self, command: str, clock: Callable[[], float]) -> None:
        self._command = command
        self._clock = clock
        self._silence, self._silent_until_s = "", 0.0

    def read_watts(self) -> float:
        """Raises OSError if the phone does not answer, NoReading if its answer is not the power that it draws."""
        if self._silence and self._clock() < self._silent_until_s:
            raise OSError(self._silence)
        try:
            status = battery_status(self._command)
        except OSError as error:
            self._silence, self._silent_until_s = str(error), self._clock() + SILENCE_S
            raise
        if status.on_charger:
            raise NoReading(f"the phone is on a charger ({status.plugged}); unplug it to measure")
        if not _has_gauge(status) or status.voltage is None or status.current is None:
            raise NoReading("the phone's gauge gives no current")
        return volts(status.voltage) * amperes(status.current)
