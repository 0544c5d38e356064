"""Global magnitude pruning: one ranking over all prunable weights of a model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.tensors import FloatArray, State
from sparsyedge.edge.wire.native_codec import MAGNITUDE, count_nonzero
from sparsyedge.edge.wire.sparse_tensor import bits_of, nonzero_entries

__all__ = ["keep_count", "keep_largest", "prune_global", "removed_count"]


def removed_count(size: int, sparsity: float) -> int:
    """The number of weights, out of `size`, that a target sparsity removes."""
    return round(sparsity * size)


def prune_global(state: State, names: Sequence[str], sparsity: float) -> State:
    """A copy of the state with the smallest |w| of the named tensors set to zero: round(sparsity * N) of them in all.

    Among equal magnitudes the first in name and memory order go: the result does not depend on the machine. If more
    weights are already zero, nothing else is removed.
    """
    size = sum(state[name].size for name in names)
    removed = removed_count(size, sparsity)
    if removed == 0:
        return dict(state)
    zeros = size - sum(count_nonzero(bits_of(state[name]), MAGNITUDE) for name in names)
    # A ranking of all entries takes several copies of the model, and most of a sparse one are equal.
    prune = _prune_nonzeros if 2 * zeros >= size and not _keeps_signed_zeros(state, names, zeros - removed) else _prune
    return dict(state) | prune(state, names, removed)


def _prune(state: State, names: Sequence[str], removed: int) -> State:
    """The named tensors without their smallest entries, zeros among them."""
    drop = _smallest(np.concatenate([np.abs(state[name]).reshape(-1) for name in names]), removed)
    pruned, start = {}, 0
    for name in names:
        pruned[name] = state[name].copy()
        pruned[name].reshape(-1)[drop[start : start + pruned[name].size]] = 0
        start += pruned[name].size
    return pruned


def keep_count(tensor: FloatArray, count: int) -> FloatArray:
    """A copy with only that many of the largest magnitudes; of equal ones the first in memory order go."""
    kept = tensor.copy()
    if count < tensor.size:
        kept.reshape(-1)[_smallest(np.abs(tensor).reshape(-1), tensor.size - count)] = 0
    return kept


def _prune_nonzeros(state: State, names: Sequence[str], removed: int) -> State:
    """The same, from the non-zeros alone: zeros go first, whichever come first among them."""
    found = [nonzero_entries(state[name]) for name in names]
    values = np.concatenate([entries.values for entries in found]).view(np.float32)
    more = removed - (sum(state[name].size for name in names) - values.size)
    keep = ~_smallest(np.abs(values), more) if more > 0 else np.ones(values.size, dtype=np.bool_)
    pruned, start = {}, 0
    for name, entries in zip(names, found, strict=True):
        kept = keep[start : start + entries.values.size]
        pruned[name] = np.zeros(state[name].shape, dtype=np.float32)
        pruned[name].reshape(-1)[entries.positions[kept]] = entries.values.view(np.float32)[kept]
        start += entries.values.size
    return pruned


def _smallest(magnitudes: FloatArray, count: int) -> NDArray[np.bool_]:
    """Which of the magnitudes are the `count` smallest, at least one; of equal ones the first."""
    threshold = np.partition(magnitudes, count - 1)[count - 1]
    smallest: NDArray[np.bool_] = magnitudes < threshold
    ties = np.flatnonzero(magnitudes == threshold)
    smallest[ties[: count - int(np.count_nonzero(smallest))]] = True
    return smallest


def _keeps_signed_zeros(state: State, names: Sequence[str], left: int) -> bool:
    """Whether the last `left` zeros, which pruning does not touch, may have one with a sign among them."""
    bits = (bits_of(state[name]) for name in names)
    return left > 0 and any(count_nonzero(each) != count_nonzero(each, MAGNITUDE) for each in bits)


def keep_largest(tensor: FloatArray, density: Fraction) -> FloatArray:
    """A copy with only the largest magnitudes, a share of `density`, rounded up and at least one; keeps all ties."""
    keep = max(1, math.ceil(density * tensor.size))
    magnitudes = np.abs(tensor)
    threshold = np.partition(magnitudes.reshape(-1), tensor.size - keep)[tensor.size - keep]
    return np.where(magnitudes >= threshold, tensor, np.float32(0))
