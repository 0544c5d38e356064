"""The workload of every contestant: the same graphs, state and batch, saved for the processes that measure memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sparsyedge.edge.data import Labels
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.tensors import FloatArray, State

__all__ = ["LEARNING_RATE", "Workload"]

# Small: the loss falls over all steps on one batch, but no gradient becomes small enough to slow down arithmetic.
LEARNING_RATE = 0.01
STATE_PREFIX = "state/"


@dataclass(frozen=True)
class Workload:
    """One batch and the state to start from."""

    artifacts: Artifacts
    state: State
    x: FloatArray
    y: Labels
    threads: int

    @classmethod
    def draw(cls, artifacts: Artifacts, state: State, *, batch: int, threads: int, seed: int) -> Workload:
        """A workload with a random batch: the time of a step does not depend on what the images show."""
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((batch, *artifacts.manifest.input_shape), dtype=np.float32)
        if artifacts.manifest.task == "regression":
            targets = rng.standard_normal((batch, artifacts.manifest.outputs), dtype=np.float32)
            return cls(artifacts, state, x, targets, threads)
        y = rng.integers(0, artifacts.manifest.classes, batch, dtype=np.int64)
        return cls(artifacts, state, x, y, threads)

    @classmethod
    def load(cls, artifacts: Path, file: Path, *, threads: int) -> Workload:
        """What `save` wrote, with the artifacts it belongs to."""
        with np.load(file, allow_pickle=False) as arrays:
            state = {name.removeprefix(STATE_PREFIX): arrays[name] for name in arrays if name.startswith(STATE_PREFIX)}
            return cls(Artifacts.load(artifacts), state, arrays["x"], arrays["y"], threads)

    def save(self, file: Path) -> None:
        """Write the state and the batch; the artifacts have their own folder."""
        arrays = {f"{STATE_PREFIX}{name}": tensor for name, tensor in self.state.items()}
        np.savez(file, x=self.x, y=self.y, **arrays)  # type: ignore[arg-type]
