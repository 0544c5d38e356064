"""Limits how far an update may move the model: at most a given multiple of the round's median update.

An update pulls on the mean with its weight times the norm of its change. We compare all updates when the round closes,
so their order of arrival does not matter. If one pulls too hard, we clip it: scale its change down to the limit. Each
tensor has its own bound, since a change that a large layer would not notice can ruin a small one. We neither measure
nor touch entries that the device pruned. They stay zero, so clipping never breaks the non-zero budget, not even in
round 1 with its dense base. BatchNorm's running statistics are bounded too; a variance scaled towards the base stays a
valid variance.

Pruning also pulls, towards zero: an update that keeps nothing of what its peers keep would take its share off every
weight. Scaling the update cannot fix that, so we scale its weight instead, by how much of the model it prunes compared
with the median update.

With fewer than three updates there is nothing to compare, so we clip nothing.
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
"""Lower bound on the median, as a share of the tensor's norm, for rounds in which hardly anyone moves the model."""
LITTLE_PRUNED = 0.05
"""The same for pruning; larger, because devices with their own targets prune more."""
PIECE = 1 << 16
"""Entries to convert to float64 at a time."""


Norms = Mapping[str, float]
"""Norm by tensor, of a model or of an update's change."""
Scales = Mapping[str, float]
"""Factor by tensor to scale an update's change with; omits tensors that are not clipped."""


class Pull(NamedTuple):
    """What an update does to the model that it starts from."""

    change: Norms
    """By tensor, the norm of the change to the entries it keeps."""
    pruned: float
    """The norm of all the entries it prunes."""


def measure(update: Tensors, base: Tensors, manifest: Manifest) -> Pull:
    """Measure how an update pulls on its base."""
    prunable = _can_be_pruned(manifest)
    change, pruned = {}, 0.0
    for name in update:
        tensor, before = update[name], base[name]
        change[name] = _norm(_change(tensor, before, name in prunable))
        if name in prunable:
            pruned = math.hypot(pruned, _norm(_pieces(before[tensor == 0])))
    return Pull(change, pruned)


def size_of(model: Tensors) -> Norms:
    """Return the norm of each tensor of a model."""
    return {name: _norm(_pieces(tensor)) for name, tensor in model.items()}


def clip_scales(
    pulls: Mapping[str, Pull], weights: Mapping[str, int], *, size: Norms, factor: float
) -> dict[str, Scales]:
    """Return the scales for each device whose update pulls more than `factor` times as hard as the median."""
    scales: dict[str, dict[str, float]] = {device: {} for device in pulls}
    for name, tensor_size in size.items():
        norms = {device: pull.change[name] for device, pull in pulls.items()}
        for device, scale in _beyond(norms, weights, factor=factor, least=NEGLIGIBLE * tensor_size).items():
            scales[device][name] = scale
    return {device: found for device, found in scales.items() if found}


def trust_of(
    pulls: Mapping[str, Pull], weights: Mapping[str, int], *, size: Norms, manifest: Manifest, factor: float
) -> dict[str, float]:
    """Return the share of its weight that each device keeps if it prunes over `factor` times as much as the median."""
    whole = math.hypot(*(size[name] for name in manifest.prunable))
    pruned = {device: pull.pruned for device, pull in pulls.items()}
    return _beyond(pruned, weights, factor=factor, least=LITTLE_PRUNED * whole)


def _beyond(norms: Mapping[str, float], weights: Mapping[str, int], *, factor: float, least: float) -> dict[str, float]:
    """Return, for each device over the bound, the scale that brings weight times norm down to it."""
    if len(norms) < MIN_PEERS:
        return {}
    pulls = {device: weights[device] * norm for device, norm in norms.items()}
    bound = factor * max(statistics.median(pulls.values()), least * statistics.median(weights.values()))
    return {device: bound / pull for device, pull in pulls.items() if pull > bound}


def share_left(norms: Norms, scales: Scales) -> float:
    """Return the share of an update's total change that the scales leave."""
    whole = math.hypot(*norms.values())
    return math.hypot(*(norm * scales.get(name, 1.0) for name, norm in norms.items())) / whole if whole else 1.0


def clip(update: Tensors, base: Tensors, manifest: Manifest, scales: Scales) -> Tensors:
    """Return the update with its change scaled down; builds each tensor on demand."""
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
        # Use float64: the difference of values near float32's limit would overflow.
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
    # Avoid BLAS: its sums depend on the number of threads.
    return math.sqrt(sum(float(np.einsum("i,i->", piece, piece)) for piece in pieces))


def _can_be_pruned(manifest: Manifest) -> frozenset[str]:
    """Return the tensors in which a zero means that the device pruned the entry."""
    return frozenset(manifest.prunable if manifest.method.uplink == "weights" else ())
