"""Writes an image to a card: only to a removable disk with nothing mounted, and only after the user confirms."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sparsyedge.edge.errors import FlashError

__all__ = ["Disk", "look_up", "write_card"]

PIECE_BYTES = 4 << 20
SECTOR = 512


@dataclass(frozen=True)
class Disk:
    """A whole disk that we may write an image to."""

    path: Path
    model: str
    size: int

    def __str__(self) -> str:
        return f"{self.path} ({self.model or 'unknown model'}, {self.size / 1e9:.1f} GB)"


def look_up(path: Path, *, root: Path = Path("/sys"), mounts: Path = Path("/proc/self/mounts")) -> Disk:
    """The disk at /dev/NAME; raises FlashError unless it is a whole, removable disk with nothing mounted from it."""
    name = path.name
    folder = root / "block" / name
    if path.parent != Path("/dev") or not re.fullmatch(r"[a-z0-9]+", name):
        raise FlashError(f"--write is {path}, allowed is a disk in /dev, such as /dev/sdb or /dev/mmcblk0")
    if not folder.is_dir():
        part = any((root / "block").glob(f"*/{name}"))
        what = "a partition; name the whole disk" if part else "no disk of this machine; see `lsblk`"
        raise FlashError(f"{path} is {what}")
    # Built-in card readers report that they are not removable; their disks are named mmcblk.
    if _read(folder / "removable") != "1" and not name.startswith("mmcblk"):
        raise FlashError(f"{path} is not removable, so it is not a card; name the card reader's disk, see `lsblk`")
    for line in mounts.read_text().splitlines():
        if re.match(rf"{re.escape(str(path))}(p?\d+)? ", line):
            raise FlashError(f"{line.split()[0]} is mounted at {line.split()[1]}; unmount it first, if it is the card")
    model = " ".join(filter(None, (_read(folder / "device" / "vendor"), _read(folder / "device" / "model"))))
    return Disk(path, model or _read(folder / "device" / "name"), int(_read(folder / "size") or 0) * SECTOR)


def write_card(image: Path, disk: Disk, *, confirm: Callable[[str], str] = input) -> None:
    """Write the image once the user has typed the disk's name, and read it back; raises FlashError if either fails."""
    size = image.stat().st_size
    if size > disk.size:
        raise FlashError(f"{image.name} has {size / 1e9:.1f} GB and {disk} has less; take a larger card")
    answer = confirm(f"everything on {disk} will be lost; type {disk.path.name} to go on: ")
    if answer.strip() != disk.path.name:
        raise FlashError(f"nothing was written to {disk.path}: the answer was not {disk.path.name}")
    try:
        written = _copy(image, disk.path)
        if _digest(disk.path, size) != written:
            raise FlashError(f"{disk} does not read back what was written; the card is worn out, take another")
    except OSError as error:
        raise FlashError(f"cannot write {disk.path}: {error.strerror}; try with sudo, or another card") from error


def _copy(image: Path, target: Path) -> str:
    digest = hashlib.sha256()
    # O_EXCL on a block device fails if the device is mounted or otherwise in use.
    handle = os.open(target, os.O_WRONLY | os.O_EXCL)
    with image.open("rb") as source, os.fdopen(handle, "wb", buffering=0) as out:
        while piece := source.read(PIECE_BYTES):
            digest.update(piece)
            out.write(piece)
        os.fsync(out.fileno())
        if hasattr(os, "posix_fadvise"):
            # Read back from the card, not from the page cache.
            os.posix_fadvise(out.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return digest.hexdigest()


def _digest(path: Path, size: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while size and (piece := file.read(min(PIECE_BYTES, size))):
            digest.update(piece)
            size -= len(piece)
    return digest.hexdigest()


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
