"""Whether a device takes a release: for it, fresh, not older than what it runs, and with room on its disk. No I/O."""

from __future__ import annotations

import platform
import re
import sys
from dataclasses import dataclass

from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.protocol.releases import Release, WheelSet

__all__ = ["SPARE_BYTES", "Machine", "check_fresh", "check_newer", "check_room", "fitting_set", "version_key"]

SPARE_BYTES = 64 << 20
"""What must stay free on the disk: a round's model and update need room too."""
INSTALL_FACTOR = 1.5
"""An environment grows by its bytecode and by whole blocks of the disk."""

_VERSION = re.compile(r"(\d+(?:\.\d+)*)(?:\.?(dev|a|b|rc|post)(\d*))?(?:\+.*)?")
_PHASES = {"dev": -4, "a": -3, "b": -2, "rc": -1, None: 0, "post": 1}


@dataclass(frozen=True)
class Machine:
    """What a wheel must fit."""

    python: str
    machine: str

    @classmethod
    def here(cls) -> Machine:
        """This device."""
        return cls("{}.{}".format(*sys.version_info[:2]), platform.machine())

    def __str__(self) -> str:
        return f"Python {self.python} on {self.machine}"


def fitting_set(release: Release, machine: Machine) -> WheelSet:
    """The files for this machine; raises SecurityError if the release has none."""
    for wheels in release.sets:
        if (wheels.python, wheels.machine) == (machine.python, machine.machine):
            return wheels
    has = ", ".join(f"Python {wheels.python} on {wheels.machine}" for wheels in release.sets)
    raise SecurityError(f"release {release.software} is for {has}, this device has {machine}")


def check_fresh(release: Release, *, now_unix_s: float, seen: int) -> None:
    """Raise SecurityError if the release has expired, or the device has seen a later one."""
    if release.version < seen:
        raise SecurityError(
            f"release {release.software} is an earlier one sent again: its version is {release.version}, this device "
            f"has seen {seen}"
        )
    if release.expires_unix_s < now_unix_s:
        days = (now_unix_s - release.expires_unix_s) / 86_400
        raise SecurityError(
            f"release {release.software} has expired {days:.1f} days ago; offer it again with `sparsyedge fleet update`"
        )


def check_newer(release: Release, running: str) -> None:
    """Raise SecurityError if the release is older than the version that runs."""
    if version_key(release.software) < version_key(running):
        raise SecurityError(
            f"release {release.software} is older than installed, which is {running}; to go back to what a device had "
            f"before, use `sparsyedge fleet rollback`"
        )


def check_room(wheels: WheelSet, *, fetched: int, free_bytes: int) -> None:
    """Raise SecurityError if the files and what they unpack to do not fit the disk; `fetched` bytes are there already.

    Called before anything is fetched.
    """
    needed = sum(file.bytes for file in wheels.files) - fetched + int(INSTALL_FACTOR * wheels.installed_bytes)
    if needed + SPARE_BYTES > free_bytes:
        raise SecurityError(
            f"the release is too large for the disk: it needs {needed / 1e6:,.0f} MB and {SPARE_BYTES / 1e6:.0f} MB to "
            f"spare, {free_bytes / 1e6:,.0f} MB are free"
        )


def version_key(version: str) -> tuple[tuple[int, ...], int, int]:
    """Orders versions as PEP 440 does, without its rarer forms; one that cannot be read is the oldest."""
    match = _VERSION.fullmatch(version)
    if match is None:
        return (), 0, 0
    numbers = [int(part) for part in match[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers), _PHASES[match[2]], int(match[3] or 0)
