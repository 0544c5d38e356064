"""The updates that light devices send: a few different ones, made once per process and shared by its devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sparsyedge.edge.model.artifacts import Artifacts, Manifest
from sparsyedge.edge.model.checkpoint import read_initial_state
from sparsyedge.edge.protocol.chunks import blob_of
from sparsyedge.edge.protocol.messages import Blob
from sparsyedge.edge.tensors import FloatArray, State
from sparsyedge.edge.training.local_update import finish_update
from sparsyedge.edge.wire.codecs import Codec
from sparsyedge.edge.wire.error_feedback import encode_with_feedback
from sparsyedge.edge.wire.frame import decode_frame

__all__ = ["Update", "UpdateSource", "keep_updates", "read_updates"]

STEP = 0.1
"""How far training moves a weight, in standard deviations of its tensor: masks then differ as after a real round."""
OTHER_STEP = 0.01


@dataclass(frozen=True)
class Update:
    """A frame and what an offer says of it."""

    frame: memoryview
    blob: Blob


class UpdateSource:
    """Makes the updates of a round. Variant `k` is the same in every process."""

    def __init__(self, artifacts: Artifacts, *, count: int, codec: Codec) -> None:
        self._artifacts = artifacts
        self._manifest: Manifest = artifacts.manifest
        self._count = count
        self._codec = codec

    def is_initial(self, model_id: str) -> bool:
        """Whether devices hold this model already, as the checkpoint."""
        return model_id == self._manifest.initial_model

    def make(
        self, *, run: str, round_number: int, model_id: str, chunk_bytes: int, model: bytes | None
    ) -> tuple[Update, ...]:
        """All variants; `model` is the frame of the round's model, None for the checkpoint's."""
        manifest = self._manifest
        base = None if model is None else decode_frame(model, manifest.shapes).state
        start = read_initial_state(self._artifacts) if base is None else base
        updates = []
        for seed in range(self._count):
            frame = encode_with_feedback(
                self._trained(start, seed),
                {},
                run=run,
                round_number=round_number,
                base_id=model_id,
                base=base,
                codec=self._codec,
                prunable=manifest.prunable,
            ).frame
            updates.append(Update(memoryview(frame), blob_of(frame, chunk_bytes=chunk_bytes)))
        return tuple(updates)

    def _trained(self, start: State, seed: int) -> State:
        """A model like one after training: every weight that is not zero has moved, and the smallest are pruned."""
        rng = np.random.default_rng(seed)
        prunable = set(self._manifest.prunable)
        moved = {
            name: _moved(tensor, rng) if name in prunable else _scaled(tensor, rng)
            for name, tensor in start.items()
            if name not in self._manifest.frozen
        }
        method = self._manifest.method
        return finish_update(
            method,
            start | moved,
            prunable=self._manifest.prunable,
            sparsity=method.sparsity,
            start=start,
            positions=self._manifest.positions,
        )


def keep_updates(updates: Sequence[Update], folder: Path) -> None:
    """Write the frames to files, for `read_updates`."""
    folder.mkdir(exist_ok=True)
    for number, update in enumerate(updates):
        (folder / f"{number:03d}.frame").write_bytes(update.frame)


def read_updates(folder: Path, *, chunk_bytes: int) -> tuple[Update, ...]:
    """The updates in a folder, in order."""
    frames = [path.read_bytes() for path in sorted(folder.glob("*.frame"))]
    return tuple(Update(memoryview(frame), blob_of(frame, chunk_bytes=chunk_bytes)) for frame in frames)


def _moved(tensor: FloatArray, rng: np.random.Generator) -> FloatArray:
    kept = np.flatnonzero(tensor)
    moved = tensor.copy()
    values = moved.reshape(-1)
    step = np.float32(STEP * float(values[kept].std())) if kept.size else np.float32(0)
    values[kept] += step * rng.standard_normal(kept.size, dtype=np.float32)
    return moved


def _scaled(tensor: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Never changes a sign: a variance must stay one."""
    return np.asarray(tensor * (1 + OTHER_STEP * rng.random(tensor.shape, dtype=np.float32)), dtype=np.float32)
