"""Asks an Android phone about its battery and Wi-Fi through Termux:API, from Termux or a Debian inside it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

__all__ = ["BatteryStatus", "battery_status", "find_command", "on_wifi"]

# proot-distro binds this folder at the same path, but it is not always on the PATH.
TERMUX_BIN = Path("/data/data/com.termux/files/usr/bin")
ANSWER_LIMIT_S = 10.0
"""Termux:API answers through an Android service; without the app, no answer ever comes."""


class BatteryStatus(msgspec.Struct, frozen=True):
    """The fields of `termux-battery-status` that matter here; Termux:API versions differ in the rest.

    Units differ between phones: see `hardware/meters/battery_units.py`.
    """

    percentage: Annotated[float, msgspec.Meta(ge=0, le=100)]
    plugged: str = "UNKNOWN"
    status: str = "UNKNOWN"
    temperature: float | None = None
    voltage: float | None = None
    current: float | None = None

    @property
    def on_charger(self) -> bool:
        """Whether a charger is connected, even if the battery is not charging."""
        return self.plugged not in ("UNPLUGGED", "UNKNOWN") or self.status == "CHARGING"


class _WifiInfo(msgspec.Struct, frozen=True):
    supplicant_state: str = ""


Answer = TypeVar("Answer", BatteryStatus, _WifiInfo)


def find_command(name: str) -> str | None:
    """The path of a Termux:API command; None except on a phone with Termux."""
    return shutil.which(name) or shutil.which(name, path=str(TERMUX_BIN))


def battery_status(command: str) -> BatteryStatus:
    """Read the phone's battery gauge; raises OSError if it does not answer, ValueError if the answer makes no sense."""
    return _decode(_run(command), BatteryStatus)


def on_wifi(command: str) -> bool:
    """Whether `termux-wifi-connectioninfo` sees a connection; scripts on Android cannot tell whether it is metered."""
    return _decode(_run(command), _WifiInfo).supplicant_state == "COMPLETED"


def _decode(answer: bytes, kind: type[Answer]) -> Answer:
    try:
        return msgspec.json.decode(answer, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"Termux:API answered {answer[:80]!r}: {error}") from error


def _run(command: str) -> bytes:
    try:
        done = subprocess.run([command], capture_output=True, timeout=ANSWER_LIMIT_S, check=True)
    except subprocess.SubprocessError as error:
        raise OSError(f"{Path(command).name} does not answer: {error}") from error
    return done.stdout
