"""Board power from sensor chips that the kernel shows under hwmon: INA219 to INA260 on a hat, INA3221 on a Jetson.

    class/hwmon/hwmon0/name                           ina219
    class/hwmon/hwmon0/power1_input                   microwatts
    class/hwmon/hwmon1/in1_input, curr1_input         millivolts, milliamperes; used where the chip has no power file
    class/hwmon/hwmon1/in1_label                      VDD_IN

The chips report power, not energy, so a thread samples it more than 100 times a second and integrates with the
trapezoidal rule. If a driver has no power file, as with some vendors' ina219, we multiply voltage by current.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from sparsyedge.edge.phase_costs import Kind
from sparsyedge.hardware.meters.sampler import PowerSampler

__all__ = ["Channel", "HwmonMeter", "find_channels"]

log = logging.getLogger(__name__)

SAMPLE_PERIOD_S = 0.008  # asks for 125 Hz, so a busy board still reaches 100
# These chips measure a graphics card, a disk or the battery side of the charger, not the board.
_OTHER_CHIPS = ("amdgpu", "i915", "xe", "nouveau", "nvme", "BAT")
# INA3221: channels 1 to 3 are rails. in4 to in6 are shunt voltages and curr4 is a sum, so never pair curr4 with in4.
_RAILS = (1, 2, 3)
# One-channel chips that people wire into the supply line; we take their reading as the board's input.
_SUPPLY_CHIPS = ("ina219", "ina220", "ina226", "ina230", "ina231", "ina238", "ina260", "power_meter")


@dataclass(frozen=True)
class Channel:
    """One sensor: the files whose product is its power, the factor to watts, and its label, if any."""

    files: tuple[Path, ...]
    watts_per_unit: float
    label: str
    whole_board: bool = False

    def watts(self) -> float:
        """Power now; a reverse current counts as zero."""
        product = 1.0
        for file in self.files:
            product *= int(file.read_text())
        return max(product * self.watts_per_unit, 0.0)


class HwmonMeter(PowerSampler):
    """Joules of the board, or of the sum of its measured rails."""

    name: str = "hwmon"
    kind: Kind = "measured-rails"
    priority: int = 10

    def __init__(self, channels: list[Channel], *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(lambda: sum(channel.watts() for channel in channels), period_s=SAMPLE_PERIOD_S, clock=clock)
        self.kind = "measured-board" if all(channel.whole_board for channel in channels) else "measured-rails"

    @classmethod
    def probe(cls, root: Path) -> Self | None:
        """A meter for the power sensors under `root`, or None if none answers."""
        channels = find_channels(root)
        return cls(channels) if channels else None


def find_channels(root: Path) -> list[Channel]:
    """The sensors to add up: only the board's input if one is labelled so, otherwise every rail that answers."""
    chips = sorted((root / "class" / "hwmon").glob("hwmon*"))
    channels = [channel for chip in chips for channel in _chip_channels(chip) if _answers(channel)]
    # Jetsons label the supply VDD_IN or POM_5V_IN; it feeds the other rails, which would be counted twice.
    inputs = [replace(channel, whole_board=True) for channel in channels if channel.label.endswith("_IN")]
    if inputs:
        return inputs
    # With several chips in supply lines we cannot tell which is the input, so they count as rails.
    return channels if len(channels) == 1 else [replace(channel, whole_board=False) for channel in channels]


def _chip_channels(chip: Path) -> list[Channel]:
    name = _read(chip / "name")
    if name.startswith(_OTHER_CHIPS):
        return []
    powers = sorted(chip.glob("power*_input"))
    if powers:
        labels = [_read(chip / file.name.replace("_input", "_label")) for file in powers]
        board = name in _SUPPLY_CHIPS
        return [Channel((file,), 1e-6, label, board) for file, label in zip(powers, labels, strict=True)]
    pairs = [(chip / f"in{rail}_input", chip / f"curr{rail}_input", chip / f"in{rail}_label") for rail in _RAILS]
    return [
        Channel((volts, amperes), 1e-6, _read(label))
        for volts, amperes, label in pairs
        if volts.is_file() and amperes.is_file()
    ]


def _answers(channel: Channel) -> bool:
    try:
        channel.watts()
    except (OSError, ValueError) as error:
        log.info("power sensor %s is left out: %s", channel.files[0], error)
        return False
    return True


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
