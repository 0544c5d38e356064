"""Reads and writes files in a FAT32 partition inside an image file, without root, mounts or external tools.

The layout, in sectors of the partition: boot sector, FSInfo, two tables of cluster numbers, clusters. A file is a chain
of clusters; a folder is a file of 32-byte entries; a long name takes up several entries before its short one.

New content goes to clusters that were free. `flush` then writes the tables, the folders, and the tables once more
without what was replaced, so that an interrupted `flush` leaves each file as it was or as it is to be.
"""

from __future__ import annotations

import array
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePosixPath
from typing import BinaryIO

import numpy as np

from sparsyedge.edge.errors import FlashError
from sparsyedge.hardware.flash.fat_layout import read_layout
from sparsyedge.hardware.flash.fat_names import LongName, long_name_entries

__all__ = ["FatVolume"]

ENTRY_BYTES = 32
END_OF_CHAIN = 0x0FFFFFFF
FIRST_RESERVED = 0x0FFFFFF7  # from here on, values are not clusters: bad, or the end of a chain
CLUSTER_MASK = 0x0FFFFFFF
MAX_FOLDER_BYTES = 2 << 20  # 65,536 entries, the most that other systems read
DELETED, END_OF_FOLDER = 0xE5, 0x00
VOLUME_LABEL, FOLDER, LONG_NAME = 0x08, 0x10, 0x0F
# Fixed at 2024-01-01, midnight, so the same inputs always give the same image.
DATE = (2024 - 1980) << 9 | 1 << 5 | 1


@dataclass(frozen=True)
class _Entry:
    """One file or folder, and where its entries are within the parent folder's bytes."""

    name: str
    is_folder: bool
    cluster: int
    size: int
    first: int
    last: int


class FatVolume:
    """The FAT32 file system at `offset` in an open file; `flush` makes changes take effect."""

    def __init__(self, file: BinaryIO, offset: int, *, sync: Callable[[], None] = lambda: None) -> None:
        """`sync` returns when what was written is on the medium; for an image that is being made it may do nothing."""
        self._file = file
        self._sync = sync
        self._folders: dict[int, bytes] = {}
        """Clusters of folders that are to change with the next flush."""
        self._replaced: set[int] = set()
        """Clusters that are free after the next flush."""
        self._layout = read_layout(file, offset)
        self._clusters = self._layout.clusters
        self._cluster_bytes = self._layout.cluster_bytes
        self._root = self._layout.root
        file.seek(self._layout.tables[0])
        self._table = array.array("I", file.read((self._clusters + 2) * 4))
        if sys.byteorder == "big":
            self._table.byteswap()
        self._next_free = 2

    # ---- files -------------------------------------------------------------------------------------------------------

    @property
    def free_bytes(self) -> int:
        """Free space, in whole clusters."""
        links = np.frombuffer(self._table, dtype=np.uint32)[2:]
        return int(np.count_nonzero(links & CLUSTER_MASK == 0)) * self._cluster_bytes

    def size_on_disk(self, size: int) -> int:
        """The space that a file of this size takes up, in whole clusters."""
        return -(-size // self._cluster_bytes) * self._cluster_bytes

    def names(self, folder: str = "") -> list[str]:
        """The names in a folder, in on-disk order; empty if there is no such folder."""
        cluster = self._find_folder(PurePosixPath(folder))
        entries = () if cluster is None else self._entries(cluster)
        return [entry.name for entry in entries if entry.name not in (".", "..")]

    def read(self, path: str) -> bytes | None:
        """A file's bytes, or None if there is no such file."""
        entry = self._find(PurePosixPath(path))
        if entry is None or entry.is_folder:
            return None
        if entry.size == 0:
            return b""
        content = self._read_chain(entry.cluster, limit=self.size_on_disk(entry.size))
        if len(content) < entry.size:
            raise FlashError(f"{path} on the boot partition ends too early; download the image again")
        return content[: entry.size]

    def write(self, path: str, content: bytes) -> None:
        """Create or replace a file, and create missing folders."""
        place = PurePosixPath(path)
        folder = self._make_folder(place.parent)
        entry = self._entry(folder, place.name)
        if entry is not None and entry.is_folder:
            raise FlashError(f"{place.name} on the boot partition is a folder and must be a file; take another image")
        cluster = self._write_chain(content) if content else 0
        if entry is None:
            self._add_entry(folder, place.name, attributes=0x20, cluster=cluster, size=len(content))
        else:
            self._point_entry(folder, entry, cluster=cluster, size=len(content))

    def flush(self) -> None:
        """Make the changes take effect; until then, new content is unreachable."""
        self._write_tables()
        self._sync()
        for cluster, content in self._folders.items():
            self._write_cluster(cluster, content)
        self._file.flush()
        self._sync()
        if self._replaced:
            for cluster in self._replaced:
                self._table[cluster] = 0
            self._next_free = min(self._next_free, *self._replaced)
            self._write_tables()
            self._sync()
        self._folders, self._replaced = {}, set()

    def _write_tables(self) -> None:
        table = self._table
        if sys.byteorder == "big":
            table = array.array("I", table)
            table.byteswap()
        for start in self._layout.tables:
            self._file.seek(start)
            self._file.write(table.tobytes())
        self._forget_free_count()
        self._file.flush()

    # ---- folders -----------------------------------------------------------------------------------------------------

    def _find(self, path: PurePosixPath) -> _Entry | None:
        folder = self._find_folder(path.parent)
        return None if folder is None else self._entry(folder, path.name)

    def _find_folder(self, path: PurePosixPath) -> int | None:
        cluster = self._root
        for part in path.parts:
            entry = self._entry(cluster, part)
            if entry is None or not entry.is_folder:
                return None
            cluster = entry.cluster or self._root
        return cluster

    def _make_folder(self, path: PurePosixPath) -> int:
        cluster = self._root
        for part in path.parts:
            entry = self._entry(cluster, part)
            if entry is not None and not entry.is_folder:
                raise FlashError(f"{part} on the boot partition is a file and must be a folder; take another image")
            cluster = self._new_folder(cluster, part) if entry is None else entry.cluster
        return cluster

    def _new_folder(self, parent: int, name: str) -> int:
        cluster = self._write_chain(bytes(self._cluster_bytes))
        # Folders in the root refer to it as cluster 0.
        above = 0 if parent == self._root else parent
        dots = _entry_bytes(b".          ", FOLDER, cluster, 0) + _entry_bytes(b"..         ", FOLDER, above, 0)
        self._write_cluster(cluster, dots + bytes(self._cluster_bytes - len(dots)))
        self._add_entry(parent, name, attributes=FOLDER, cluster=cluster, size=0)
        return cluster

    def _entry(self, folder: int, name: str) -> _Entry | None:
        return next((entry for entry in self._entries(folder) if entry.name.lower() == name.lower()), None)

    def _entries(self, folder: int) -> Iterator[_Entry]:
        content = self._read_folder(folder)
        long_name = LongName()
        for place in range(0, len(content), ENTRY_BYTES):
            raw = content[place : place + ENTRY_BYTES]
            if raw[0] == END_OF_FOLDER:
                return
            if raw[0] == DELETED:
                long_name.forget()
            elif raw[11] & 0x3F == LONG_NAME:
                long_name.add(raw, place)
            elif raw[11] & VOLUME_LABEL:
                long_name.forget()
            else:
                high, low, size = struct.unpack("<20xH4xHI", raw)
                name, first = long_name.take(raw, place)
                yield _Entry(name, bool(raw[11] & FOLDER), high << 16 | low, size, first, place)

    def _point_entry(self, folder: int, entry: _Entry, *, cluster: int, size: int) -> None:
        """Have an entry name other content; it lies in one sector, so a medium writes it whole or not at all."""
        replaced = set(self._chain(entry.cluster)) if entry.cluster else set()
        if replaced & self._replaced:
            raise FlashError(
                f"{entry.name} on the boot partition shares its place with another file: the image is damaged; "
                "download it again"
            )
        content = bytearray(self._read_folder(folder))
        struct.pack_into("<H", content, entry.last + 20, cluster >> 16)
        struct.pack_into("<HI", content, entry.last + 26, cluster & 0xFFFF, size)
        self._rewrite_chain(folder, bytes(content))
        self._replaced |= replaced

    def _add_entry(self, folder: int, name: str, *, attributes: int, cluster: int, size: int) -> None:
        content = self._read_folder(folder)
        taken = {content[place : place + 11] for place in range(0, len(content), ENTRY_BYTES)}
        short, long_entries = long_name_entries(name, taken)
        entries = long_entries + _entry_bytes(short, attributes, cluster, size)
        end = next(
            (place for place in range(0, len(content), ENTRY_BYTES) if content[place] == END_OF_FOLDER), len(content)
        )
        grown = content[:end] + entries
        self._rewrite_chain(folder, grown + bytes(self.size_on_disk(max(len(grown), len(content))) - len(grown)))

    # ---- clusters ----------------------------------------------------------------------------------------------------

    def _chain(self, cluster: int) -> Iterator[int]:
        seen = set()
        while True:
            if not 2 <= cluster < self._clusters + 2:
                raise FlashError(f"the boot partition is damaged at cluster {cluster}; download the image again")
            if cluster in seen:
                raise FlashError("the boot partition is damaged: a file has no end; download the image again")
            seen.add(cluster)
            yield cluster
            cluster = self._table[cluster] & CLUSTER_MASK
            if cluster >= FIRST_RESERVED:
                return

    def _read_chain(self, cluster: int, *, limit: int) -> bytes:
        """A chain's content, at most its first `limit` bytes, in whole clusters."""
        return b"".join(self._read_cluster(one) for one in islice(self._chain(cluster), limit // self._cluster_bytes))

    def _read_folder(self, cluster: int) -> bytes:
        content = self._read_chain(cluster, limit=MAX_FOLDER_BYTES + self._cluster_bytes)
        if len(content) > MAX_FOLDER_BYTES:
            raise FlashError("the boot partition is damaged: a folder is too long; download the image again")
        return content

    def _write_chain(self, content: bytes) -> int:
        """Write the content to a new chain, padded with zeros; returns its first cluster."""
        wanted = self.size_on_disk(len(content)) // self._cluster_bytes
        chain = self._allocate(wanted)
        for number, cluster in enumerate(chain):
            piece = content[number * self._cluster_bytes : (number + 1) * self._cluster_bytes]
            self._write_cluster(cluster, piece.ljust(self._cluster_bytes, b"\0"))
        return chain[0]

    def _rewrite_chain(self, cluster: int, content: bytes) -> None:
        """Overwrite a folder with whole clusters of content at the next flush, extending it if needed."""
        chain = list(self._chain(cluster))
        missing = len(content) // self._cluster_bytes - len(chain)
        if missing > 0:
            more = self._allocate(missing)
            for one in more:
                # Until the folder is written, it ends here.
                self._write_cluster(one, bytes(self._cluster_bytes))
            self._table[chain[-1]] = more[0]
            chain += more
        for number, one in enumerate(chain):
            self._folders[one] = content[number * self._cluster_bytes : (number + 1) * self._cluster_bytes]

    def _allocate(self, count: int) -> list[int]:
        free = []
        for cluster in range(self._next_free, self._clusters + 2):
            if self._table[cluster] & CLUSTER_MASK == 0:
                free.append(cluster)
                if len(free) == count:
                    break
        if len(free) < count:
            raise FlashError(
                f"the boot partition is full: {count * self._cluster_bytes} bytes do not fit; "
                "leave files out of the wheelhouse, or take an image with a larger boot partition"
            )
        for cluster, following in zip(free, [*free[1:], END_OF_CHAIN], strict=True):
            self._table[cluster] = following
        self._next_free = free[-1] + 1
        return free

    def _read_cluster(self, cluster: int) -> bytes:
        if cluster in self._folders:
            return self._folders[cluster]
        self._file.seek(self._layout.place(cluster))
        return self._file.read(self._cluster_bytes)

    def _write_cluster(self, cluster: int, content: bytes) -> None:
        self._file.seek(self._layout.place(cluster))
        self._file.write(content)

    def _forget_free_count(self) -> None:
        """Mark FSInfo's count of free clusters, which is only a hint, as unknown (all ones)."""
        if self._layout.info is not None:
            self._file.seek(self._layout.info)
            self._file.write(b"\xff" * 8)


def _entry_bytes(short: bytes, attributes: int, cluster: int, size: int) -> bytes:
    return struct.pack(
        "<11sBBBHHHHHHHI", short, attributes, 0, 0, 0, DATE, DATE, cluster >> 16, 0, DATE, cluster & 0xFFFF, size
    )
