"""The masks of a run's models on disk, one bit per prunable weight; the report compares them between rounds."""

from __future__ import annotations

from pathlib import Path

import zstandard

from sparsyedge.edge.storage import write_atomically

__all__ = ["MaskFiles"]

KEPT_MASKS = 100
"""About how many masks a run keeps: a heat map shows no more, and a long run must not fill the disk."""


class MaskFiles:
    """The folder `masks/` of a run."""

    def __init__(self, run_dir: Path, *, rounds: int) -> None:
        self._folder = run_dir / "masks"
        self._rounds = rounds

    def wants(self, round_number: int) -> bool:
        """Return whether to keep the mask of this round's model."""
        return round_number == self._rounds or round_number % max(1, self._rounds // KEPT_MASKS) == 0

    def save(self, round_number: int, packed: bytes) -> None:
        """Keep a mask that `metrics.pack_mask` made."""
        write_atomically(self._path(round_number), zstandard.compress(packed, 3))

    def load(self) -> dict[int, bytes]:
        """Return all masks, in order of rounds."""
        rounds = sorted(int(path.stem) for path in self._folder.glob("*.mask"))
        return {number: zstandard.decompress(self._path(number).read_bytes()) for number in rounds}

    def _path(self, round_number: int) -> Path:
        return self._folder / f"{round_number}.mask"
