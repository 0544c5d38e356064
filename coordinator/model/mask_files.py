"""The masks of a run's models on disk, one bit per prunable weight: what the overlap between any two rounds needs."""

from __future__ import annotations

from pathlib import Path

import zstandard

from sparsyedge.edge.storage import write_atomically

__all__ = ["MaskFiles"]

KEPT_MASKS = 100
"""About so many of a run are kept: a heat map shows no more, and a long run must not fill the disk."""


class MaskFiles:
    """The folder `masks/` of a run."""

    def __init__(self, run_dir: Path, *, rounds: int) -> None:
        self._folder = run_dir / "masks"
        self._rounds = rounds

    def wants(self, round_number: int) -> bool:
        """Whether the mask of that round's model is one of those that are kept."""
        return round_number == self._rounds or round_number % max(1, self._rounds // KEPT_MASKS) == 0

    def save(self, round_number: int, packed: bytes) -> None:
        """Keep a mask as `metrics.pack_mask` makes it."""
        write_atomically(self._path(round_number), zstandard.compress(packed, 3))

    def load(self) -> dict[int, bytes]:
        """All masks, in order of rounds."""
        rounds = sorted(int(path.stem) for path in self._folder.glob("*.mask"))
        return {number: zstandard.decompress(self._path(number).read_bytes()) for number in rounds}

    def _path(self, round_number: int) -> Path:
        return self._folder / f"{round_number}.mask"
