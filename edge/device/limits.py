"""When a device should not train: too hot, low on battery, memory or disk, or on a network that costs money.

`read_vitals` reads the sensors and `breach` decides, so tests cover every rule without a sensor. A value that a board
does not have (no thermometer, no battery) imposes no limit. A phone has a battery and a network, so as long as it does
not tell about them, it keeps the limits that its owner has set on them.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from sparsyedge.edge.config import LimitsConfig
from sparsyedge.edge.device.termux_api import battery_status, find_command, on_wifi

__all__ = ["Limits", "Vitals", "breach", "read_vitals"]

log = logging.getLogger(__name__)

PHONE_VARIABLE = "SPARSYEDGE_PHONE"
"""Set on a phone by its bundle, for the case that Termux's commands cannot be seen from the Debian."""
CHECK_S = 5.0
"""How often a device reads its vitals; in between, the last result stands."""
COOL_DOWN_C = 5.0
"""How far below its limit a hot device must cool before it continues; keeps it from toggling at every step."""


@dataclass(frozen=True, kw_only=True)
class Vitals:
    """A device's current condition; None for what it cannot measure."""

    temperature_c: float | None = None
    battery_percent: float | None = None
    on_charger: bool | None = None
    free_memory_mb: float | None = None
    free_disk_mb: float | None = None
    on_wifi: bool | None = None
    is_phone: bool = False


def breach(vitals: Vitals, config: LimitsConfig, *, was_hot: bool = False) -> str | None:
    """The first limit broken, as a phrase with value and bound; None if the device may train."""
    if config.only_on_charger and (doubt := _doubt("on a charger", vitals.on_charger, vitals)):
        return f"{doubt}, and only_on_charger is set"
    hottest = config.max_temperature_c - (COOL_DOWN_C if was_hot else 0.0)
    if vitals.temperature_c is not None and vitals.temperature_c > hottest:
        return f"temperature is {vitals.temperature_c:.1f} C, allowed are {hottest:g} C"
    low = vitals.battery_percent is not None and vitals.battery_percent < config.min_battery_percent
    if low and not vitals.on_charger:
        return f"battery is at {vitals.battery_percent:.0f} %, needed are {config.min_battery_percent:g} %"
    for name, free_mb, needed_mb in (
        ("memory", vitals.free_memory_mb, config.min_free_memory_mb),
        ("disk", vitals.free_disk_mb, config.min_free_disk_mb),
    ):
        if free_mb is not None and free_mb < needed_mb:
            return f"free {name} is {free_mb:.0f} MB, needed are {needed_mb:g} MB"
    if config.wifi_only and (doubt := _doubt("on Wi-Fi", vitals.on_wifi, vitals)):
        return f"{doubt}, and wifi_only is set"
    return None


def _doubt(state: str, is_so: bool | None, vitals: Vitals) -> str:
    """Why a device cannot be taken to be in a state; empty if it is, or if it is a board that cannot tell."""
    if is_so is None and vitals.is_phone:
        return f"the app Termux:API does not tell whether this phone is {state}"
    return f"not {state}" if is_so is False else ""


class Limits:
    """A device's own limits, checked at most every few seconds."""

    def __init__(
        self,
        config: LimitsConfig,
        *,
        vitals: Callable[[], Vitals],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._read_vitals = vitals
        self._clock = clock
        self._checked_s: float | None = None
        self._breach: str | None = None
        self.vitals = Vitals()
        """The device's condition when it was last checked."""

    def breach(self) -> str | None:
        """Why this device must not train now; None if it may."""
        now_s = self._clock()
        if self._checked_s is None or now_s - self._checked_s >= CHECK_S:
            self._checked_s = now_s
            was_hot = self._breach is not None and self._breach.startswith("temperature")
            self.vitals = self._read_vitals()
            self._breach = breach(self.vitals, self._config, was_hot=was_hot)
        return self._breach


def read_vitals(work_dir: Path, *, root: Path = Path("/sys"), proc: Path = Path("/proc")) -> Vitals:
    """Read this device's condition: a phone's battery and Wi-Fi through Termux:API, the rest from kernel files."""
    command = find_command("termux-battery-status")
    if command:
        vitals = _phone_vitals(command, root)
    elif PHONE_VARIABLE in os.environ:
        vitals = Vitals(temperature_c=_hottest_zone(root), is_phone=True)
    else:
        vitals = _board_vitals(root)
    return replace(vitals, free_memory_mb=_free_memory_mb(proc), free_disk_mb=_free_disk_mb(work_dir))


def _board_vitals(root: Path) -> Vitals:
    percent, on_charger = _battery(root)
    return Vitals(temperature_c=_hottest_zone(root), battery_percent=percent, on_charger=on_charger)


def _phone_vitals(command: str, root: Path) -> Vitals:
    """What Termux:API tells; what it does not stays None."""
    try:
        status = battery_status(command)
    except (OSError, ValueError) as error:
        log.debug("the phone's battery is unknown: %s", error)
        # The same app would answer for Wi-Fi. Without it only the processor's heat is known, so that has to do.
        return Vitals(temperature_c=_hottest_zone(root), is_phone=True)
    battery_c = status.temperature
    if battery_c is None or not _is_plausible(battery_c):
        battery_c = _hottest_zone(root)
    return Vitals(
        # In the hand a phone is as warm as its battery; its processor may well have 70 C.
        temperature_c=battery_c,
        battery_percent=status.percentage,
        on_charger=status.on_charger,
        on_wifi=_phone_wifi(),
        is_phone=True,
    )


def _is_plausible(celsius: float) -> bool:
    """Disabled thermal zones return nonsense such as -274 C, and a phone without a thermometer -214748364.8 C."""
    return -40 < celsius < 200


def _hottest_zone(root: Path) -> float | None:
    celsius = []
    for zone in (root / "class" / "thermal").glob("thermal_zone*"):
        number = _number(zone / "temp")
        if number is not None and _is_plausible(number / 1000):
            celsius.append(number / 1000)
    return max(celsius, default=None)


def _battery(root: Path) -> tuple[float | None, bool | None]:
    """Charge of the emptiest battery in percent, and whether a charger is connected; None, None without a battery."""
    percents, on_charger = [], False
    for supply in sorted((root / "class" / "power_supply").glob("*")):
        kind = _text(supply / "type")
        if kind == "Battery" and _text(supply / "scope") != "Device":
            percent = _number(supply / "capacity")
            percents += [] if percent is None else [percent]
            on_charger |= _text(supply / "status") in ("Charging", "Full", "Not charging")
        elif kind in ("Mains", "USB"):
            on_charger |= _number(supply / "online") == 1
    return (min(percents), on_charger) if percents else (None, None)


def _phone_wifi() -> bool | None:
    command = find_command("termux-wifi-connectioninfo")
    try:
        return on_wifi(command) if command else None
    except (OSError, ValueError) as error:
        log.debug("the phone's network is unknown: %s", error)
        return None


def _free_memory_mb(proc: Path) -> float | None:
    for line in _text(proc / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024 / 1e6
    return None


def _free_disk_mb(work_dir: Path) -> float | None:
    place = next(folder for folder in (work_dir, *work_dir.parents) if folder.exists())
    disk = os.statvfs(place)
    return disk.f_bavail * disk.f_frsize / 1e6


def _number(path: Path) -> float | None:
    try:
        return float(_text(path))
    except ValueError:
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
