"""Global magnitude pruning: one ranking over all prunable weights of a model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.tensors import FloatArray, State
from sparsyedge.edge.wire.native_codec import MAGNITUDE, Bits, count_nonzero
from sparsyedge.edge.wire.sparse_tensor import bits_of, nonzero_entries

__all__ = ["keep_count", "keep_largest", "prune_global", "removed_count"]

MAGNITUDE_BITS = 31
HALF_BITS = 16
PIECE = 1 << 18
"""Entries that are counted at once, so that what they are turned into stays small."""


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
    """The named tensors without their smallest entries, zeros among them; one tensor at a time, to spare memory."""
    threshold = _smallest_magnitude([bits_of(state[name]) for name in names], removed)
    ties = removed - sum(int(np.count_nonzero(np.abs(state[name]) < threshold)) for name in names)
    pruned = {}
    for name in names:
        magnitudes = np.abs(state[name]).reshape(-1)
        equal = np.flatnonzero(magnitudes == threshold)[:ties]
        ties -= equal.size
        pruned[name] = state[name].copy()
        flat = pruned[name].reshape(-1)
        flat[magnitudes < threshold] = 0
        flat[equal] = 0
    return pruned


def _smallest_magnitude(tensors: Sequence[Bits], rank: int) -> float:
    """The `rank`-th smallest magnitude of all entries, from 1; NaN comes last.

    Magnitudes are ordered as their bits are: the upper half of the bits is found first, then the lower.
    """
    found = 0
    for shift, bins in ((HALF_BITS, 1 << (MAGNITUDE_BITS - HALF_BITS)), (0, 1 << HALF_BITS)):
        counts = np.zeros(bins, dtype=np.int64)
        for piece in _magnitude_bits(tensors):
            wanted = piece if shift else piece[piece >> HALF_BITS == found >> HALF_BITS]
            counts += np.bincount((wanted >> shift & (bins - 1)).astype(np.intp), minlength=bins)
        sums = np.cumsum(counts)
        place = int(np.searchsorted(sums, rank))
        rank -= int(sums[place]) - int(counts[place])
        found |= place << shift
    return float(np.array([found], dtype=np.uint32).view(np.float32)[0])


def _magnitude_bits(tensors: Sequence[Bits]) -> Iterator[Bits]:
    """The entries' bits without their signs, in pieces."""
    for bits in tensors:
        for begin in range(0, bits.size, PIECE):
            yield bits[begin : begin + PIECE] & np.uint32(MAGNITUDE)


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
