"""The frames of a run on disk: global models by their id, and the updates of the round that is open."""

from __future__ import annotations

import shutil
from pathlib import Path

from sparsyedge.edge.storage import write_atomically

__all__ = ["Models"]


class Models:
    """The folders `models/` and `updates/` of a run; every file in them is whole."""

    def __init__(self, run_dir: Path) -> None:
        self._models = run_dir / "models"
        self._updates = run_dir / "updates"

    def model_path(self, model_id: str) -> Path:
        """Where the frame of a model is or would be."""
        return self._models / f"{model_id}.frame"

    def save_model(self, model_id: str, frame: bytes) -> None:
        """Keep a model durably."""
        write_atomically(self.model_path(model_id), frame)

    def drop_models(self, *, keep: set[str]) -> None:
        """Remove all models but these: a long run would fill the disk with them."""
        for path in self._models.glob("*.frame"):
            if path.stem not in keep:
                path.unlink()

    def save_update(self, round_number: int, device: str, frame: bytes) -> None:
        """Keep an accepted update durably until its round is recorded."""
        write_atomically(self._update_path(round_number, device), frame)

    def load_update(self, round_number: int, device: str) -> bytes:
        """The frame of an accepted update."""
        return self._update_path(round_number, device).read_bytes()

    def drop_updates(self, round_number: int) -> None:
        """Remove a round's updates; they live on in its model."""
        shutil.rmtree(self._updates / str(round_number), ignore_errors=True)

    def _update_path(self, round_number: int, device: str) -> Path:
        return self._updates / str(round_number) / f"{device}.frame"
