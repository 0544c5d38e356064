"""A large file that is mostly a hole, in memory: an image that costs what is in it."""

from __future__ import annotations

import io
import os

SECTOR = 512


class SparseFile(io.RawIOBase):
    """Whole sectors by their number; all others are zeros."""

    def __init__(self, size: int, sectors: dict[int, bytes]) -> None:
        self.size = size
        self.sectors = dict(sectors)
        self._place = 0

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._place = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self.size}[whence]
        if self._place < 0:
            raise OSError(22, "Invalid argument")
        return self._place

    def read(self, size: int | None = -1, /) -> bytes:
        start = min(self._place, self.size)
        end = self.size if size is None or size < 0 else min(start + size, self.size)
        content = bytearray(end - start)
        # A large read is of a table that is mostly empty: look at what there is and not at what there could be.
        first, last = start // SECTOR, -(-end // SECTOR)
        for number in self.sectors if last - first > len(self.sectors) else range(first, last):
            piece = self.sectors.get(number)
            if piece is not None and first <= number < last:
                low, high = max(start, number * SECTOR), min(end, (number + 1) * SECTOR)
                content[low - start : high - start] = piece[low - number * SECTOR : high - number * SECTOR]
        self._place = end
        return bytes(content)

    def write(self, content: bytes, /) -> int:  # type: ignore[override]
        start, end = self._place, self._place + len(content)
        self.size = max(self.size, end)
        for number in range(start // SECTOR, -(-end // SECTOR)):
            low, high = max(start, number * SECTOR), min(end, (number + 1) * SECTOR)
            piece = content[low - start : high - start]
            if len(piece) < SECTOR:
                held = bytearray(self.sectors.get(number, bytes(SECTOR)))
                held[low - number * SECTOR : high - number * SECTOR] = piece
                piece = bytes(held)
            if number in self.sectors or piece.strip(b"\0"):
                self.sectors[number] = piece
        self._place = end
        return len(content)
