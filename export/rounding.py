"""How far rounding can take torch: one step may be exact by luck, steps with the last bits moved show the rest."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from sparsyedge.edge.tensors import FloatArray, State
from sparsyedge.export.reference import ReferenceStep

__all__ = ["chose_alike", "nudges"]

NUDGES = 4
LAST_BIT = 2.0**-23


def nudges(state: State, x: FloatArray) -> Iterator[tuple[State, FloatArray]]:
    """The same step some times over, each with about the last bit of every value moved; zeros stay zero."""
    for seed in range(NUDGES):
        rng = np.random.default_rng(seed)
        yield {name: _nudged(value, rng) for name, value in state.items()}, _nudged(x, rng)


def _nudged(tensor: FloatArray, rng: np.random.Generator) -> FloatArray:
    return (tensor * (1 + rng.integers(-1, 2, tensor.shape) * LAST_BIT)).astype(np.float32)


def chose_alike(one: ReferenceStep, other: ReferenceStep) -> bool:
    """Whether two steps made the same discrete choices."""
    kept = other.kept_activations
    return all(map(torch.equal, one.relu_signs, other.relu_signs)) and all(
        torch.equal(mask, kept[name]) for name, mask in one.kept_activations.items()
    )
