"""A phone's battery gauge, read with Termux:API's `termux-battery-status`, since Android hides /sys from programs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from sparsyedge.edge.device.termux_api import battery_status, find_command
from sparsyedge.edge.phase_costs import Kind
from sparsyedge.hardware.meters.battery_units import amperes, volts
from sparsyedge.hardware.meters.sampler import NoReading, PowerSampler

__all__ = ["TermuxMeter"]

SAMPLE_PERIOD_S = 5.0
"""Each reading starts processes on the phone; gauges refresh every few seconds at best."""


class TermuxMeter(PowerSampler):
    """Joules drawn from the phone's battery, including screen and radio; counts nothing on a charger."""

    name: str = "termux"
    kind: Kind = "battery"

    def __init__(self, command: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(lambda: _watts(command), period_s=SAMPLE_PERIOD_S, clock=clock)

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
        return None if status.voltage is None or status.current is None else cls(command)


def _watts(command: str) -> float:
    status = battery_status(command)
    if status.on_charger:
        raise NoReading(f"the phone is on a charger ({status.plugged}); unplug it to measure")
    if status.voltage is None or status.current is None:
        raise NoReading("the phone's gauge gives no current")
    return volts(status.voltage) * amperes(status.current)
