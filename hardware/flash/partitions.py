"""Reads the partition table at the start of an image to find the boot partition."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import BinaryIO

from sparsyedge.edge.errors import FlashError

__all__ = ["Partition", "boot_partition"]

SECTOR = 512
# FAT32 with and without LBA; no Raspberry Pi OS uses FAT16 or NTFS types.
FAT32_TYPES = (0x0B, 0x0C)


@dataclass(frozen=True)
class Partition:
    """A partition's position and size, in bytes."""

    start: int
    size: int


def boot_partition(file: BinaryIO, name: str) -> Partition:
    """The image's first FAT32 partition; raises FlashError if there is none or the image is truncated."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    head = file.read(SECTOR)
    if len(head) < SECTOR or head[510:] != b"\x55\xaa":
        raise FlashError(f"{name} has no partition table; take a Raspberry Pi OS Lite (64-bit) image, .img or .img.xz")
    partitions = [
        (kind, Partition(start * SECTOR, sectors * SECTOR))
        for kind, start, sectors in (struct.unpack_from("<4xB3xII", head, 446 + 16 * number) for number in range(4))
        if kind and start and sectors
    ]
    boot = next((partition for kind, partition in partitions if kind in FAT32_TYPES), None)
    if boot is None:
        raise FlashError(f"{name} has no FAT32 boot partition; take a Raspberry Pi OS Lite (64-bit) image")
    end = max(partition.start + partition.size for _, partition in partitions)
    if end > size:
        raise FlashError(
            f"{name} is cut: its partitions end at byte {end} and the file at {size}; download or unpack it again"
        )
    return boot
