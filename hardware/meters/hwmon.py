"""Board power from sensor chips that the kernel shows under hwmon: INA219 to INA260 on a hat, INA3221 on a Jetson.

    class/hwmon/hwmon0/name                           ina219
    class/hwmon/hwmon0/power1_input                   microwatts
    class/hwmon/hwmon1/in1_input, curr1_input         millivolts, milliamperes; used where the chip has no power file
    class/hwmon/hwmon1/in1_label                      VDD_IN

The chips report power, not energy, so a thread samples it more than 100 times a second and integrates with the
trapezoidal rule. If a driver has no power file, as with some vendors' ina219, we multiply voltage by current.
`[meters.hwmon]` in device.toml may name the channels that count.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from sparsyedge.edge.config import HwmonConfig
from sparsyedge.edge.device.energy import MeterSettings
from sparsyedge.edge.errors import ConfigError
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
_SUPPLY_CHIPS = (
    "ina219",
    "ina220",
    "ina226",
    "ina228",
    "ina230",
    "ina231",
    "ina234",
    "ina237",
    "ina238",
    "ina260",
    "ina700",
    "ina780",
    "power_meter",
)
_SAME = 4.0
"""A power file and voltage x current of the same chip differ by less than this factor, unless a unit is wrong."""
_LEAST_W = 0.1
"""Below, rounding to milliamperes may make up more than that."""


@dataclass(frozen=True)
class Channel:
    """One sensor: the files whose product is its power, the factor to watts, and its label, if any."""

    files: tuple[Path, ...]
    watts_per_unit: float
    label: str
    whole_board: bool = False
    name: str = ""
    """Chip and number, such as `ina3221:2`."""
    parts: tuple[Path, ...] = ()
    """Voltage and current, where `files` is a power file and the chip has them, too."""

    def watts(self) -> float:
        """Power now; a reverse current counts as zero."""
        product = 1.0
        for file in self.files:
            product *= int(file.read_text())
        return max(product * self.watts_per_unit, 0.0)

    def check(self) -> None:
        """Read once; raises OSError or ValueError if it does not answer, or in another unit than the kernel's."""
        watts = self.watts()
        if not self.parts:
            return
        millivolts, milliamperes = (int(part.read_text()) for part in self.parts)
        product = max(millivolts * milliamperes * 1e-6, 0.0)
        if max(watts, product) > _LEAST_W and not product / _SAME <= watts <= product * _SAME:
            raise ValueError(
                f"it says {watts:.4g} W, but its voltage x current is {product:.4g} W; the driver's unit is wrong"
            )


class HwmonMeter(PowerSampler):
    """Joules of the board, or of the sum of its measured rails."""

    name: str = "hwmon"
    kind: Kind = "measured-rails"
    priority: int = 10
    sticks: bool = True

    def __init__(self, channels: list[Channel], *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(lambda: sum(channel.watts() for channel in channels), period_s=SAMPLE_PERIOD_S, clock=clock)
        self.kind = "measured-board" if all(channel.whole_board for channel in channels) else "measured-rails"

    @classmethod
    def probe(cls, root: Path) -> Self | None:
        """A meter for the power sensors under `root`, or None if none answers."""
        return cls.configured(root, MeterSettings())

    @classmethod
    def configured(cls, root: Path, settings: MeterSettings) -> Self | None:
        """A meter for the channels that the device's config names; raises ConfigError if one does not answer."""
        wanted = settings.meters.hwmon
        channels = choose_channels(root, wanted) if wanted.channels else find_channels(root)
        return cls(channels) if channels else None


def choose_channels(root: Path, wanted: HwmonConfig) -> list[Channel]:
    """The channels that the config names, each once; raises ConfigError if one is missing or ambiguous."""
    present = _answering(root)
    chosen: list[Channel] = []
    for name in wanted.channels:
        found = [channel for channel in present if name in (channel.label, channel.name)]
        if len(found) != 1:
            known = ", ".join(f"{each.name} ({each.label})" if each.label else each.name for each in present) or "none"
            state = "answers" if not found else "is the name of several channels; give each a label in the device tree"
            raise ConfigError(
                f"key `meters.hwmon.channels` has {name!r}: "
                f"{'no such power sensor ' if not found else 'it '}{state}; here are {known}"
            )
        if found[0] in chosen:
            raise ConfigError(f"key `meters.hwmon.channels` has {name!r} twice: its joules would be counted twice")
        chosen += found
    return [replace(channel, whole_board=wanted.whole_board) for channel in chosen]


def find_channels(root: Path) -> list[Channel]:
    """The sensors to add up: only the board's input if one is labelled so, otherwise every rail that answers."""
    channels = _answering(root)
    # Jetsons label the supply VDD_IN or POM_5V_IN; it feeds the other rails, which would be counted twice.
    inputs = [replace(channel, whole_board=True) for channel in channels if channel.label.endswith("_IN")]
    if inputs:
        return inputs
    # With several chips in supply lines we cannot tell which is the input, so they count as rails.
    return channels if len(channels) == 1 else [replace(channel, whole_board=False) for channel in channels]


def _answering(root: Path) -> list[Channel]:
    chips = sorted((root / "class" / "hwmon").glob("hwmon*"), key=lambda chip: (len(chip.name), chip.name))
    return [channel for chip in chips for channel in _chip_channels(chip) if _answers(channel)]


def _chip_channels(chip: Path) -> list[Channel]:
    name = _read(chip / "name")
    if name.startswith(_OTHER_CHIPS):
        return []
    powers = sorted(chip.glob("power*_input"))
    if powers:
        return [_power_channel(chip, name, file) for file in powers]
    pairs = [(rail, chip / f"in{rail}_input", chip / f"curr{rail}_input") for rail in _RAILS]
    return [
        Channel((volts, amperes), 1e-6, _read(chip / f"in{rail}_label"), name=f"{name}:{rail}")
        for rail, volts, amperes in pairs
        if volts.is_file() and amperes.is_file()
    ]


def _power_channel(chip: Path, name: str, file: Path) -> Channel:
    number = file.name.removeprefix("power").removesuffix("_input")
    parts = (chip / f"in{number}_input", chip / f"curr{number}_input")
    # On ina2xx, in1 is the bus voltage; elsewhere the numbers of power, in and curr need not belong together.
    checked = name in _SUPPLY_CHIPS and all(part.is_file() for part in parts)
    return Channel(
        (file,),
        1e-6,
        _read(chip / f"power{number}_label"),
        name in _SUPPLY_CHIPS,
        name=f"{name}:{number}",
        parts=parts if checked else (),
    )


def _answers(channel: Channel) -> bool:
    try:
        channel.check()
    except (OSError, ValueError) as error:
        log.warning("power sensor %s (%s) is left out: %s", channel.name, channel.files[0], error)
        return False
    return True


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
