"""The accepted updates of the open round, as frames on disk."""

from __future__ import annotations

import shutil
from pathlib import Path

from sparsyedge.edge.storage import write_atomically

__all__ = ["UpdateFiles"]


class UpdateFiles:
    """The folder `updates/` of a run; every file in it is complete."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / "updates"

    def save(self, round_number: int, device: str, frame: bytes) -> None:
        """Save an accepted update durably, until its round is recorded."""
        write_atomically(self._path(round_number, device), frame)

    def load(self, round_number: int, device: str) -> bytes:
        """Return the frame of an accepted update."""
        return self._path(round_number, device).read_bytes()

    def drop(self, round_number: int) -> None:
        """Remove the updates of this round and of all before it; the round's model contains them."""
        for folder in self._folder.glob("*"):
            if folder.name.isdecimal() and int(folder.name) <= round_number:
                shutil.rmtree(folder, ignore_errors=True)

    def _path(self, round_number: int, device: str) -> Path:
        return self._folder / str(round_number) / f"{device}.frame"
