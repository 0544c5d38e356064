"""How far an update may move the model: so many times as far as the median update of its round, or it is scaled down.

An update pulls at the mean by its weight times the norm of its change. When a round closes, all of its updates are
compared, so it does not matter who came first; one that pulls too hard is clipped: what it changes is scaled until it
pulls as hard as it may. Every tensor has a bound of its own, since what is nothing to a large layer is the end of a
small one. Entries that the device pruned have no part in this. They are not measured, and they stay zero, so that an
update within the budget of non-zeros is so after it was clipped, also in round 1, whose base is dense. BatchNorm's
running statistics are bounded like all else; scaled towards the base, a variance stays one.

With fewer than three updates there is nothing to compare with, and nothing is clipped.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.artifacts import Manifest
from sparsyedge.edge.tensors import FloatArray, MadeOnDemand, Tensors

__all__ = ["Norms", "Scales", "clip", "clip_scales", "measure", "share_left", "size_of"]

MIN_PEERS = 3
NEGLIGIBLE = 0.001
"""Where nobody moves the model any more, moving it by this share of itself is what the median is taken for."""
PIECE = 1 << 16
"""Entries that are looked at in float64 at a time."""


Norms = Mapping[str, float]
"""By tensor: of a model, or of what an update changes."""
Scales = Mapping[str, float]
"""By tensor, what is left of an update's change; tensors of which all is left are not named."""


def measure(update: Tensors, base: Tensors, manifest: Manifest) -> Norms:
    """How far an update moves each tensor; entries that the device pruned do not count."""
    pruned = _can_be_pruned(manifest)
    return {name: _norm(_change(update[name], base[name], name in pruned)) for name in update}


def size_of(model: Tensors) -> Norms:
    """How large each tensor of a model is."""
    return {name: _norm(_pieces(tensor)) for name, tensor in model.items()}


def clip_scales(
    norms: Mapping[str, Norms], weights: Mapping[str, int], *, size: Norms, factor: float
) -> dict[str, Scales]:
    """Of each device whose update pulls more than `factor` times as hard as the median one, what may be left of it."""
    if len(norms) < MIN_PEERS:
        return {}
    middle = statistics.median(weights.values())
    scales: dict[str, dict[str, float]] = {device: {} for device in norms}
    for name, tensor_size in size.items():
        pulls = {device: weights[device] * norms[device][name] for device in norms}
        bound = factor * max(statistics.median(pulls.values()), NEGLIGIBLE * tensor_size * middle)
        for device, pull in pulls.items():
            if pull > bound:
                scales[device][name] = bound / pull
    return {device: found for device, found in scales.items() if found}


def share_left(norms: Norms, scales: Scales) -> float:
    """What is left of the norm of an update's whole change."""
    whole = math.hypot(*norms.values())
    return math.hypot(*(norm * scales.get(name, 1.0) for name, norm in norms.items())) / whole if whole else 1.0


def clip(update: Tensors, base: Tensors, manifest: Manifest, scales: Scales) -> Tensors:
    """The update with its change scaled down; each tensor is made when it is asked for."""
    pruned = _can_be_pruned(manifest)

    def make(name: str) -> FloatArray:
        if name not in scales:
            return update[name]
        return _scaled(update[name], base[name], scales[name], keep_zeros=name in pruned)

    return MadeOnDemand(tuple(update), make)


def _scaled(update: FloatArray, base: FloatArray, scale: float, *, keep_zeros: bool) -> FloatArray:
    moved, values, before = np.empty_like(update), update.reshape(-1), base.reshape(-1)
    for start in range(0, values.size, PIECE):
        piece = slice(start, start + PIECE)
        # In float64, where the change of a value near float32's end is a number.
        near = before[piece].astype(np.float64)
        found = near + scale * (values[piece] - near)
        if keep_zeros:
            found[values[piece] == 0] = 0.0
        moved.reshape(-1)[piece] = found
    return moved


def _change(update: FloatArray, base: FloatArray, keep_zeros: bool) -> Iterator[NDArray[np.float64]]:
    values, before = update.reshape(-1), base.reshape(-1)
    for start in range(0, values.size, PIECE):
        piece = slice(start, start + PIECE)
        change = values[piece].astype(np.float64) - before[piece]
        yield change[values[piece] != 0] if keep_zeros else change


def _pieces(tensor: FloatArray) -> Iterator[NDArray[np.float64]]:
    values = tensor.reshape(-1)
    return (values[start : start + PIECE].astype(np.float64) for start in range(0, values.size, PIECE))


def _norm(pieces: Iterable[NDArray[np.float64]]) -> float:
    # Not BLAS, whose sums depend on how many threads it has.
    return math.sqrt(sum(float(np.einsum("i,i->", piece, piece)) for piece in pieces))


def _can_be_pruned(manifest: Manifest) -> frozenset[str]:
    """The tensors in which a zero says that the device pruned the entry, and is not a value like others."""
    return frozenset(manifest.prunable if manifest.method.uplink == "weights" else ())
