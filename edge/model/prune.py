"""Global magnitude pruning: one ranking over all prunable weights of a model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from sparsyedge.edge.tensors import FloatArray, State

__all__ = ["keep_largest", "prune_global", "removed_count"]


def removed_count(size: int, sparsity: float) -> int:
    """The number of weights, out of `size`, that a target sparsity removes."""
    return round(sparsity * size)


def prune_global(state: State, names: Sequence[str], sparsity: float) -> State:
    """A copy of the state with the smallest |w| of the named tensors set to zero: round(sparsity * N) of them in all.

    Among equal magnitudes the first in name and memory order go: the result does not depend on the machine. If more
    weights are already zero, nothing else is removed.
    """
    magnitudes = np.concatenate([np.abs(state[name]).reshape(-1) for name in names])
    removed = removed_count(magnitudes.size, sparsity)
    pruned = dict(state)
    if removed == 0:
        return pruned
    threshold = np.partition(magnitudes, removed - 1)[removed - 1]
    drop = magnitudes < threshold
    ties = np.flatnonzero(magnitudes == threshold)
    drop[ties[: removed - int(np.count_nonzero(drop))]] = True
    start = 0
    for name in names:
        tensor = state[name].copy()
        tensor.reshape(-1)[drop[start : start + tensor.size]] = 0
        pruned[name] = tensor
        start += tensor.size
    return pruned


def keep_largest(tensor: FloatArray, density: Fraction) -> FloatArray:
    """A copy with only the largest magnitudes, a share of `density`, rounded up and at least one; keeps all ties."""
    keep = max(1, math.ceil(density * tensor.size))
    magnitudes = np.abs(tensor)
    threshold = np.partition(magnitudes.reshape(-1), tensor.size - keep)[tensor.size - keep]
    return np.where(magnitudes >= threshold, tensor, np.float32(0))
