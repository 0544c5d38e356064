"""Reads the layout of a FAT32 file system from its boot sector; rejects values that do not fit the file."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import BinaryIO

from sparsyedge.edge.errors import FlashError

__all__ = ["FatLayout", "read_layout"]

BOOT_SECTOR_BYTES = 512
SECTOR_BYTES = (512, 1024, 2048, 4096)
MAX_CLUSTER_BYTES = 64 << 10
MAX_TABLES = 2
MIN_CLUSTERS = 65525
"""With fewer clusters it is FAT12 or FAT16, whatever the boot sector says."""


@dataclass(frozen=True)
class FatLayout:
    """Positions in bytes from the start of the image; clusters are numbered from 2."""

    clusters: int
    cluster_bytes: int
    root: int
    """The first cluster of the root folder."""
    tables: tuple[int, ...]
    data: int
    info: int | None
    """Where FSInfo keeps its count of free clusters, if there is an FSInfo."""

    def place(self, cluster: int) -> int:
        """Where a cluster begins."""
        return self.data + (cluster - 2) * self.cluster_bytes


def read_layout(file: BinaryIO, offset: int) -> FatLayout:
    """Read the layout of the file system at `offset`; raises FlashError if it is not FAT32, damaged or truncated."""
    size = file.seek(0, os.SEEK_END)
    file.seek(offset)
    boot = file.read(BOOT_SECTOR_BYTES)
    if len(boot) < BOOT_SECTOR_BYTES or boot[510:] != b"\x55\xaa":
        raise FlashError("the boot partition has no FAT file system; take an unchanged Raspberry Pi OS image")
    sector, per_cluster, reserved, tables = _numbers("<HBHB", boot, 11)
    (small_sectors,) = _numbers("<H", boot, 19)
    sectors, table_sectors = _numbers("<II", boot, 32)
    root, info = _numbers("<IH", boot, 44)
    if not (sector in SECTOR_BYTES and reserved and 1 <= tables <= MAX_TABLES and table_sectors) or not (
        per_cluster and sector * per_cluster <= MAX_CLUSTER_BYTES
    ):
        raise FlashError("the boot partition is not FAT32, or damaged; take an unchanged Raspberry Pi OS image")
    data_sector = reserved + tables * table_sectors
    clusters = ((sectors or small_sectors) - data_sector) // per_cluster
    clusters = min(clusters, table_sectors * sector // 4 - 2)
    if clusters < MIN_CLUSTERS:
        raise FlashError("the boot partition is FAT12 or FAT16, allowed is FAT32; take a Raspberry Pi OS image")
    layout = FatLayout(
        clusters=clusters,
        cluster_bytes=sector * per_cluster,
        root=root,
        tables=tuple(offset + (reserved + number * table_sectors) * sector for number in range(tables)),
        data=offset + data_sector * sector,
        info=offset + info * sector + 488 if 0 < info < reserved else None,
    )
    end = layout.place(clusters + 2)
    if end > size:
        raise FlashError(
            f"the image is cut: its boot partition ends at byte {end} and the file at {size}; download it again"
        )
    return layout


def _numbers(layout: str, content: bytes, place: int) -> tuple[int, ...]:
    return struct.unpack_from(layout, content, place)
