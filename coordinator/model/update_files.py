"""The accepted updates of the open round: their frames one after the other, in one file per round.

The store says where each frame is. Whatever lies behind the last one that it knows was cut short by a crash, and the
next process writes over it.
"""

from __future__ import annotations

import os
from pathlib import Path

from sparsyedge.edge.faults import crash_point
from sparsyedge.edge.storage import sync_directory

__all__ = ["UpdateFiles"]

SYNC = os.fdatasync if hasattr(os, "fdatasync") else os.fsync


class UpdateFiles:
    """The files `updates/ROUND.log` of a run; one at a time is written."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / "updates"
        self._handle: int | None = None
        self._end = 0
        self._is_synced = True
        self.round = 0
        """The round whose updates we write; 0 before the first."""

    def begin(self, round_number: int, *, end: int) -> None:
        """Write the updates of this round from now on, behind the first `end` bytes of its file."""
        self.close()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(self.path(round_number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self.round, self._end = round_number, end
        os.ftruncate(self._handle, end)
        sync_directory(self._folder)

    def save(self, frame: bytes) -> int:
        """Write an accepted update and return its position; it is durable after the next `sync`."""
        assert self._handle is not None
        position, half, view = self._end, len(frame) // 2, memoryview(frame)
        self._is_synced = False
        for part in (view[:half], view[half:]):
            self._write(part)
            crash_point("half-written")
        return position

    def _write(self, content: memoryview) -> None:
        assert self._handle is not None
        while content:
            written = os.pwrite(self._handle, content, self._end)
            self._end += written
            content = content[written:]

    def sync(self) -> None:
        """Make everything durable that was saved so far."""
        if self._handle is None or self._is_synced:
            return
        # Also if it fails: then nothing refers to what was lost, and a second attempt would not find out.
        self._is_synced = True
        crash_point("before-sync")
        SYNC(self._handle)

    def load(self, round_number: int, *, position: int, size: int) -> bytes:
        """Return the frame of an accepted update; it is short if the file is."""
        with self.path(round_number).open("rb") as file:
            file.seek(position)
            return file.read(size)

    def drop(self, round_number: int) -> None:
        """Remove the updates of this round and of all before it; the round's model contains them."""
        if self.round <= round_number:
            self.close()
        for path in self._folder.glob("*.log"):
            if path.stem.isdecimal() and int(path.stem) <= round_number:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file that is being written."""
        if self._handle is not None:
            os.close(self._handle)
        self._handle, self.round, self._is_synced = None, 0, True

    def path(self, round_number: int) -> Path:
        """The file of a round's updates."""
        return self._folder / f"{round_number}.log"
