"""How far an update may move the model: so many times as far as the median update of its round, or it is scaled down.

An update pulls at the mean by its weight times the norm of its change. When a round closes, all of its updates are
compared, so it does not matter who came first; one that pulls too hard is clipped: what it changes is scaled until it
pulls as hard as it may. Every tensor has a bound of its own, since what is nothing to a large layer is the end of a
small one. Entries that the device pruned have no part in this. They are not measured, and they stay zero, so that an
update within the budget of non-zeros is so after it was clipped, also in round 1, whose base is dense. BatchNorm's
running statistics are bounded like all else; scaled towards the base, a variance stays one.

To prune is to pull, too, towards zero: an update that keeps nothing of what its peers keep would take its share of
every weight away. That cannot be scaled down in the update, so its weight is: by what it prunes of the model, compared
with what the median update does.

With fewer than three updates there is nothing to compare with, and nothing is clipped.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.tensors import FloatArray, MadeOnDemand, Tensors

__all__ = ["Norms", "Pull", "Scales", "clip", "clip_scales", "measure", "share_left", "size_of", "trust_of"]

MIN_PEERS = 3
NEGLIGIBLE = 0.001
"""Where nobody moves the model any more, moving it by this share of itself is what the median is taken for."""
LITTLE_PRUNED = 0.05
"""The same for what is pruned, of which there is more where devices have targets of their own."""
PIECE = 1 << 16
"""Entries that are looked at in float64 at a time."""


Norms = Mapping[str, float]
"""By tensor: of a model, or of what an update changes."""
Scales = Mapping[str, float]
"""By tensor, what is left of an update's change; tensors of which all is left are not named."""


class Pull(NamedTuple):
    """What an update does to the model that it starts from."""

    change: Norms
    """How far it moves what it keeps of each tensor."""
    pruned: float
    """The norm of all that it prunes."""


def measure(update: Tensors, base: Tensors, manifest: Manifest) -> Pull:
    """How an update pulls at its base."""
    prunable = _can_be_pruned(manifest)
    change, pruned = {}, 0.0
    for name in update:
        tensor, before = update[name], base[name]
        change[name] = _norm(_change(tensor, before, name in prunable))
        if name in prunable:
            pruned = math.hypot(pruned, _norm(_pieces(before[tensor == 0])))
    return Pull(change, pruned)


def size_of(model: Tensors) -> Norms:
    """How large each tensor of a model is."""
    return {name: _norm(_pieces(tensor)) for name, tensor in model.items()}


def clip_scales(
    pulls: Mapping[str, Pull], weights: Mapping[str, int], *, size: Norms, factor: float
) -> dict[str, Scales]:
    """Of each device whose update pulls more than `factor` times as hard as the median one, what may be left of it."""
    scales: dict[str, dict[str, float]] = {device: {} for device in pulls}
    for name, tensor_size in size.items():
        norms = {device: pull.change[name] for device, pull in pulls.items()}
        for device, scale in _beyond(norms, weights, factor=factor, least=NEGLIGIBLE * tensor_size).items():
            scales[device][name] = scale
    return {device: found for device, found in scales.items() if found}


def trust_of(
    pulls: Mapping[str, Pull], weights: Mapping[str, int], *, size: Norms, manifest: Manifest, factor: float
) -> dict[str, float]:
    """Of each device whose update prunes over `factor` times as much as the median one, what is left of its weight."""
    whole = math.hypot(*(size[name] for name in manifest.prunable))
    pruned = {device: pull.pruned for device, pull in pulls.items()}
    return _beyond(pruned, weights, factor=factor, least=LITTLE_PRUNED * whole)


def _beyond(norms: Mapping[str, float], weights: Mapping[str, int], *, factor: float, least: float) -> dict[str, float]:
    """By device, what brings weight times norm down to `factor` times the median; only of those that are beyond."""
    if len(norms) < MIN_PEERS:
        return {}
    pulls = {device: weights[device] * norm for device, norm in norms.items()}
    bound = factor * max(statistics.median(pulls.values()), least * statistics.median(weights.values()))
    return {device: bound / pull for device, pull in pulls.items() if pull > bound}


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
