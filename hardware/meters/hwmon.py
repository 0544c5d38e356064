"""Board power from sensor chips that the kernel shows under hwmon: INA219 to INA260 on a hat, INA3221 on a Jetson.

    class/hwmon/hwmon0/name                           ina219
    class/hwmon/hwmon0/power1_input                   microwatts
    class/hwmon/hwmon1/in1_input, curr1_input         millivolts, milliamperes; used where the chip has no power file
    class/hwmon/hwmon1/in1_label                      VDD_IN

The chips give power, not energy, so a thread samples it about 100 times a second and integrates by trapezoids.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sparsyedge.edge.energy import Kind

__all__ = ["Channel", "HwmonMeter", "find_channels"]

log = logging.getLogger(__name__)

SAMPLE_PERIOD_S = 0.01
# These chips report a graphics card, a disk or the battery's side of the charger, not what the board draws.
_OTHER_CHIPS = ("amdgpu", "i915", "xe", "nouveau", "nvme", "BAT")
# INA3221: channels 1 to 3 are rails; in4 to in6 are shunt voltages, and curr4 is a sum that would pair with in4.
_RAILS = (1, 2, 3)


@dataclass(frozen=True)
class Channel:
    """One sensor: the files whose product is its power, the factor that makes it watts, and its label if it has one."""

    files: tuple[Path, ...]
    watts_per_unit: float
    label: str

    def watts(self) -> float:
        """Power now; a current that flows backwards counts as none, so that energy never falls."""
        product = 1.0
        for file in self.files:
            product *= int(file.read_text())
        return max(product * self.watts_per_unit, 0.0)


class HwmonMeter:
    """Joules of the board, or of the sum of its measured rails."""

    name: str = "hwmon"
    kind: Kind = "measured"

    def __init__(self, channels: list[Channel], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._channels = channels
        self._clock = clock
        self._lock = threading.Lock()
        self._joules = 0.0
        self._last: tuple[float, float] | None = None  # seconds and watts of the last sample that succeeded
        self._reported = False
        self._halt = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def probe(cls, root: Path) -> Self | None:
        """A meter over the power sensors under `root`, or None where there are none that answer."""
        channels = find_channels(root)
        return cls(channels) if channels else None

    def start(self) -> None:
        """Start the sampling thread."""
        if self._thread is None:
            self._halt.clear()
            self.sample()
            self._thread = threading.Thread(target=self._run, name="hwmon-meter", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the sampling thread and wait for it; the time until the next start is not counted."""
        if self._thread is not None:
            self._halt.set()
            self._thread.join()
            self._thread = None
            self.sample()
            self._last = None

    def read_joules(self) -> float:
        """Joules up to this moment; while counting, takes a sample of its own so that short phases come out right."""
        if self._thread is not None:
            self.sample()
        return self._joules

    def sample(self) -> None:
        """Add the energy since the last sample; a sensor that does not answer adds nothing and is logged once."""
        with self._lock:
            try:
                watts = sum(channel.watts() for channel in self._channels)
            except (OSError, ValueError) as error:
                self._last = None
                if not self._reported:
                    log.warning("power sensor does not answer, its joules are missing from here on: %s", error)
                    self._reported = True
                return
            now_s = self._clock()
            if self._last is not None:
                last_s, last_watts = self._last
                self._joules += (now_s - last_s) * (watts + last_watts) / 2
            self._last = now_s, watts

    def _run(self) -> None:
        while not self._halt.wait(SAMPLE_PERIOD_S):
            self.sample()


def find_channels(root: Path) -> list[Channel]:
    """The sensors to add up: the board's input alone where one is labelled so, else every rail that answers."""
    chips = sorted((root / "class" / "hwmon").glob("hwmon*"))
    channels = [channel for chip in chips for channel in _chip_channels(chip) if _answers(channel)]
    # Jetsons label the supply VDD_IN or POM_5V_IN; the other rails hang on it and would be counted twice.
    inputs = [channel for channel in channels if channel.label.endswith("_IN")]
    return inputs or channels


def _chip_channels(chip: Path) -> list[Channel]:
    if _read(chip / "name").startswith(_OTHER_CHIPS):
        return []
    powers = sorted(chip.glob("power*_input"))
    if powers:
        labels = [_read(chip / file.name.replace("_input", "_label")) for file in powers]
        return [Channel((file,), 1e-6, label) for file, label in zip(powers, labels, strict=True)]
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
