"""What a device checks before installing: every wheel's hash, and a lock file that makes pip refuse any other wheel."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparsyedge.edge.errors import FlashError
from sparsyedge.edge.security.wheel_list import LIST_HEADER, LIST_NAME
from sparsyedge.edge.storage import sha256_file, write_atomically
from sparsyedge.hardware.flash.wheelhouse import BOARD, PYTHONS, Wheel, select

__all__ = ["Signer", "WheelList", "device_wheels", "write_lists"]

LOCK_NAME = "requirements-{python}.lock"
Signer = Callable[["WheelList"], bytes]
"""Signs a list with the fleet's key."""


@dataclass(frozen=True)
class WheelList:
    """The wheels for one Python, as files for a device; other code makes the signature."""

    python: str
    wheels: tuple[Wheel, ...]
    content: bytes
    lock: bytes
    machine: str = BOARD

    @property
    def name(self) -> str:
        return LIST_NAME.format(python=_suffix(self.python, self.machine))

    @property
    def lock_name(self) -> str:
        return LOCK_NAME.format(python=_suffix(self.python, self.machine))

    @classmethod
    def of(cls, folder: Path, python: str, machine: str = BOARD) -> WheelList:
        """The list for a device with this Python; raises FlashError if the wheelhouse lacks a wheel."""
        wheels = tuple(select(folder, python, machine))
        hashes = {wheel.path.name: sha256_file(wheel.path) for wheel in wheels}
        # The board runs pip from its wheel and does not install it.
        lines = [
            f"{wheel.name}=={wheel.version} --hash=sha256:{hashes[wheel.path.name]}\n"
            for wheel in wheels
            if wheel.name != "pip"
        ]
        lock = "".join(lines).encode()
        name = LOCK_NAME.format(python=_suffix(python, machine))
        hashes[name] = hashlib.sha256(lock).hexdigest()
        content = "".join([f"{LIST_HEADER}\n", *(f"{sha256}  {file}\n" for file, sha256 in hashes.items())])
        return cls(python, wheels, content.encode(), lock, machine)


def _suffix(python: str, machine: str) -> str:
    """What tells a list from others: cards look for the Python alone."""
    return python if machine == BOARD else f"{python}-{machine}"


def device_wheels(folder: Path, pythons: tuple[str, ...], sign: Signer) -> dict[str, bytes]:
    """Every file that a device with one of these Pythons needs to install: wheels, lists, signatures, locks."""
    files: dict[str, bytes] = {}
    for python in pythons:
        made = WheelList.of(folder, python)
        files |= {wheel.path.name: wheel.path.read_bytes() for wheel in made.wheels}
        files |= {made.name: made.content, f"{made.name}.sig": sign(made), made.lock_name: made.lock}
    return files


def write_lists(folder: Path, pythons: Sequence[str] = PYTHONS, machine: str = BOARD) -> list[WheelList]:
    """Write the lists to be signed into the wheelhouse, one for each Python it serves."""
    lists = []
    for python in pythons:
        try:
            made = WheelList.of(folder, python, machine)
        except FlashError:
            continue
        write_atomically(folder / made.name, made.content)
        write_atomically(folder / made.lock_name, made.lock)
        lists.append(made)
    return lists
