"""The battery's own gauge, read through the kernel: for laptops, and boards on a battery hat.

    class/power_supply/BAT0/type                      Battery
    class/power_supply/BAT0/scope                     Device, where it is a mouse's and not ours
    class/power_supply/BAT0/status                    Discharging
    class/power_supply/BAT0/power_now                 microwatts, where the driver has it; else
    class/power_supply/BAT0/voltage_now, current_now  microvolts, microamperes, with exceptions

A gauge refreshes its numbers once or a few times a second; reading more often only costs energy. While a charger is
connected, the battery's current is not what the device draws, so we count nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from sparsyedge.edge.phase_costs import Kind
from sparsyedge.hardware.meters.battery_units import amperes, volts
from sparsyedge.hardware.meters.sampler import NoReading, PowerSampler

__all__ = ["PowerSupplyMeter"]

SAMPLE_PERIOD_S = 0.25


class PowerSupplyMeter(PowerSampler):
    """Joules drawn from the batteries by everything they feed, including screen and radio."""

    name: str = "power-supply"
    kind: Kind = "battery"

    def __init__(self, batteries: list[Path], *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(
            lambda: sum(_battery_watts(battery) for battery in batteries), period_s=SAMPLE_PERIOD_S, clock=clock
        )

    @classmethod
    def probe(cls, root: Path) -> Self | None:
        """A meter for the batteries under `root`, or None if none has a readable gauge."""
        supplies = sorted((root / "class" / "power_supply").glob("*"))
        batteries = [supply for supply in supplies if _is_gauge(supply)]
        return cls(batteries) if batteries else None


def _is_gauge(supply: Path) -> bool:
    try:
        if (supply / "type").read_text().strip() != "Battery" or _read(supply / "scope") == "Device":
            return False
        _watts(supply)
    except (OSError, ValueError):
        return False
    return True


def _battery_watts(battery: Path) -> float:
    status = _read(battery / "status")
    if status in ("Charging", "Full", "Not charging"):
        raise NoReading(f"battery {battery.name} is on a charger ({status}); unplug it to measure")
    return _watts(battery)


def _watts(battery: Path) -> float:
    try:
        return abs(int((battery / "power_now").read_text())) / 1e6
    except FileNotFoundError:
        voltage, current = (int((battery / name).read_text()) for name in ("voltage_now", "current_now"))
        return volts(voltage) * amperes(current)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
