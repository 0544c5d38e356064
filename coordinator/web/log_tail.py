"""The end of a log that grows: read in bounded pieces, also over the moment when the file is changed for a new one."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

__all__ = ["LogTail"]

KEPT_LINES = 500
PIECE_BYTES = 64 * 1024
MAX_LINE = 1000


class LogTail:
    """The last lines of a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = 0
        self._position = 0
        self._rest = b""
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)

    def grown(self) -> list[str]:
        """Return the lines that are new since the last call; at most as many as are kept."""
        try:
            with self._path.open("rb") as file:
                new = self._read(file.fileno())
        except OSError:
            return []
        *complete, self._rest = (self._rest + new).split(b"\n")
        self._rest = self._rest[-MAX_LINE:]
        lines = [_readable(line) for line in complete if line][-KEPT_LINES:]
        self.lines.extend(lines)
        return lines

    def _read(self, handle: int) -> bytes:
        status = os.fstat(handle)
        if status.st_ino != self._inode or status.st_size < self._position:
            self._inode, self._position, self._rest = status.st_ino, 0, b""
        if status.st_size - self._position > PIECE_BYTES:
            # Whoever writes so much is not read whole; the cut line at the beginning is dropped.
            self._position = status.st_size - PIECE_BYTES
            _, _, new = os.pread(handle, PIECE_BYTES, self._position).partition(b"\n")
            self._rest = b""
        else:
            new = os.pread(handle, PIECE_BYTES, self._position)
        self._position = status.st_size
        return new


def _readable(line: bytes) -> str:
    text = line[:MAX_LINE].decode(errors="replace")
    return "".join(sign if sign.isprintable() else "?" for sign in text)
