"""Stock Raspberry Pi OS images: identifies the release, and makes a copy to write to."""

from __future__ import annotations

import contextlib
import lzma
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, Literal

from sparsyedge.edge.errors import FlashError
from sparsyedge.hardware.flash.fat import FatVolume
from sparsyedge.hardware.flash.partitions import boot_partition

__all__ = ["OsImage", "boot_volume", "identify", "unpack"]

COPY_BYTES = 4 << 20
MAX_VARINT_BITS = 63
"""Size limit of a number in .xz; reading an endless one would take quadratic time."""
XZ_MAGIC = b"\xfd7zXZ\x00"
OTHER_ARCHIVES = {b"PK\x03\x04": "zip", b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\x28\xb5\x2f\xfd": "zstd"}


@dataclass(frozen=True)
class OsImage:
    """What determines how we make a card: the release, its Python, and its first-boot mechanism."""

    release: Literal["trixie", "bookworm"]
    python: str
    first_boot: Literal["cloud-init", "firstrun"]


TRIXIE = OsImage("trixie", "3.13", "cloud-init")
BOOKWORM = OsImage("bookworm", "3.11", "firstrun")


def identify(volume: FatVolume, name: str) -> OsImage:
    """Identify the release from the files on the boot partition; raises FlashError for 32-bit and unknown images.

    Trixie has cloud-init's files; Bookworm starts its own first-boot program from the kernel's command line. A 32-bit
    image has kernels for older boards as well as the 64-bit one.
    """
    names = {entry.lower() for entry in volume.names()}
    advice = "take Raspberry Pi OS Lite (64-bit), Bookworm or Trixie"
    if "kernel7.img" in names or "kernel.img" in names:
        raise FlashError(f"{name} is a 32-bit image, and there is no onnxruntime for 32-bit ARM; {advice}")
    if "kernel8.img" not in names:
        raise FlashError(f"{name} has no 64-bit Raspberry Pi kernel (kernel8.img) on its boot partition; {advice}")
    if {"user-data", "meta-data"} <= names:
        return TRIXIE
    command_line = volume.read("cmdline.txt") or b""
    if b"raspberrypi-sys-mods/firstboot" in command_line:
        return BOOKWORM
    raise FlashError(f"{name} is neither Bookworm nor Trixie, or it has been started before; {advice}, unused")


@contextlib.contextmanager
def boot_volume(path: Path, *, writable: bool = False, name: str | None = None) -> Iterator[FatVolume]:
    """Open an image's or a disk's boot partition, called `name` in errors.

    Writes changes when the block ends without an error.
    """
    try:
        with path.open("r+b" if writable else "rb") as file:
            # A disk may be pulled out at any time; an image that is cut off is thrown away.
            sync = partial(os.fsync, file.fileno()) if path.is_block_device() else lambda: None
            volume = FatVolume(file, boot_partition(file, name or path.name).start, sync=sync)
            yield volume
            if writable:
                volume.flush()
                os.fsync(file.fileno())
    except OSError as error:
        raise FlashError(f"cannot read image {path}: {error.strerror}; check the path") from error


def unpack(image: Path, target: Path) -> None:
    """Copy the image to `target`, unpacking .xz; raises FlashError if it does not fit or is damaged."""
    try:
        with image.open("rb") as file:
            head = file.read(6)
            _refuse_other_archives(image, head)
            file.seek(0)
            packed = head == XZ_MAGIC
            _require_space(target, _unpacked_bytes(file, image) if packed else image.stat().st_size)
            with target.open("wb") as out, contextlib.ExitStack() as stack:
                _copy(stack.enter_context(lzma.open(file)) if packed else file, out)
    except FileNotFoundError as error:
        raise FlashError(f"no image {image}; check the path") from error
    except (lzma.LZMAError, EOFError, MemoryError) as error:
        raise FlashError(f"{image} is damaged: {error or 'it asks for too much memory'}; download it again") from error
    except OSError as error:
        raise FlashError(f"cannot copy {image} to {target}: {error.strerror}") from error


def _refuse_other_archives(image: Path, head: bytes) -> None:
    for magic, name in OTHER_ARCHIVES.items():
        if head.startswith(magic):
            raise FlashError(f"{image} is packed with {name}, allowed are .img and .img.xz; unpack it first")


def _copy(source: BinaryIO | lzma.LZMAFile, out: BinaryIO) -> None:
    """Copy in pieces and turn pieces of zeros into holes, since most of an image is empty."""
    empty = bytes(COPY_BYTES)
    while piece := source.read(COPY_BYTES):
        if piece == empty:
            out.seek(len(piece), os.SEEK_CUR)
        else:
            out.write(piece)
    out.truncate(out.tell())


def _unpacked_bytes(file: BinaryIO, image: Path) -> int:
    """The unpacked size of an .xz file, from the index at its end."""
    size = image.stat().st_size
    try:
        file.seek(size - 12)
        footer = file.read(12)
        index_bytes = (int.from_bytes(footer[4:8], "little") + 1) * 4
        file.seek(size - 12 - index_bytes)
        index = file.read(index_bytes)
        records, *numbers = _varints(index[1:])
        total = sum(numbers[1 : 2 * records : 2])  # pairs of packed and unpacked bytes
    except (OSError, ValueError):
        # A truncated file; unpacking it will report that.
        total = size
    finally:
        file.seek(0)
    return total


def _varints(content: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in content:
        if shift == MAX_VARINT_BITS:
            raise ValueError("a number without an end")
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            yield number
            number = shift = 0


def _require_space(target: Path, needed: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if needed > free:
        raise FlashError(
            f"a card takes {needed / 1e9:.1f} GB and the disk has {free / 1e9:.1f} GB free; "
            "make room, or choose another place with --out"
        )
