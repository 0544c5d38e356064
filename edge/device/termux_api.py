"""Asks an Android phone about its battery and Wi-Fi through Termux:API, from Termux or a Debian inside it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

__all__ = ["BatteryStatus", "battery_status", "find_command", "on_wifi"]

# proot-distro binds this folder at the same path, but it is not always on the PATH.
TERMUX_BIN = Path("/data/data/com.termux/files/usr/bin")
ANSWER_LIMIT_S = 10.0
"""Termux:API answers through an Android service; without the app, no answer ever comes."""
TRIES = 2
"""Even with the app, one answer in some dozens never comes."""
# -1 is what Termux:API passes on if Android gave nothing.
_NOT_PLUGGED = ("UNPLUGGED", "UNKNOWN", "PLUGGED_-1")


class BatteryStatus(msgspec.Struct, frozen=True):
    """The fields of `termux-battery-status` that matter here; Termux:API versions differ in the rest.

    Units differ between phones: see `hardware/meters/battery_units.py`. A phone leaves out what it cannot tell.
    """

    percentage: Annotated[float, msgspec.Meta(ge=0, le=100)] | None = None
    plugged: str = "UNKNOWN"
    status: str = "UNKNOWN"
    temperature: float | None = None
    voltage: float | None = None
    current: float | None = None

    @property
    def on_charger(self) -> bool:
        """Whether a charger is connected, even if the battery is not charging; False if the phone does not know."""
        return self.plugged not in _NOT_PLUGGED or self.status == "CHARGING"


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
    for _ in range(TRIES):
        try:
            return _ask(command)
        except subprocess.TimeoutExpired as error:
            silence: subprocess.SubprocessError = error
        except subprocess.SubprocessError as error:
            silence = error
            break
    raise OSError(f"{Path(command).name} does not answer: {silence}") from silence


def _ask(command: str) -> bytes:
    """What the command prints; if it does not end in time, none of its processes stay behind."""
    with subprocess.Popen(
        [command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            answer, _ = process.communicate(timeout=ANSWER_LIMIT_S)
        except subprocess.TimeoutExpired:
            # Otherwise each silent answer leaves two processes; from 32 on, Android kills Termux.
            _end_session(process.pid)
            raise
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
        return answer


def _end_session(session: int) -> None:
    """Kill all processes of a session: Termux's commands run `timeout`, which is in a process group of its own."""
    os.kill(session, signal.SIGKILL)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name before the last bracket may contain anything; the session is the fourth number after it.
            if int(stat.read_text().rpartition(")")[2].split()[3]) == session:
                os.kill(int(stat.parent.name), signal.SIGKILL)
        except (OSError, ValueError, IndexError):
            continue
