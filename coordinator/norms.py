"""How far an update may move the model: so many times as far as the median update of its round, or it is scaled down.

An update pulls at the mean by its weight times the norm of its change. When a round closes, all of its updates are
compared, so it does not matter who came first; one that pulls too hard is clipped: what it changes is scaled until it
pulls as hard as it may. Entries that the device pruned have no part in this. They are not measured, and they stay zero,
so that an update within the budget of non-zeros is so after it was clipped, also in round 1, whose base is dense.
BatchNorm's running statistics have a bound of their own; scaled towards the base, a variance stays one.

With fewer than three updates there is nothing to compare with, and nothing is clipped.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.artifacts import Manifest
from sparsyedge.edge.tensors import FloatArray, MadeOnDemand, Tensors

__all__ = ["Norms", "Scales", "clip", "clip_scales", "measure", "size_of"]

MIN_PEERS = 3
NEGLIGIBLE = 0.001
"""Where nobody moves the model any more, moving it by this share of itself is what the median is taken for."""
PIECE = 1 << 16
"""Entries that are looked at in float64 at a time."""


class Norms(NamedTuple):
    """The norms of what is trained and of BatchNorm's running statistics: of a model, or of an update's change."""

    weights: float
    statistics: float


class Scales(NamedTuple):
    """What is left of an update's change: 1 is all of it."""

    weights: float
    statistics: float


def measure(update: Tensors, base: Tensors, manifest: Manifest) -> Norms:
    """How far an update moves the model; entries that the device pruned do not count."""
    pruned = _can_be_pruned(manifest)
    return Norms(
        weights=_norm(_change(update[name], base[name], name in pruned) for name in _trained(manifest)),
        statistics=_norm(_change(update[name], base[name], False) for name in _running(manifest)),
    )


def size_of(model: Tensors, manifest: Manifest) -> Norms:
    """How large a model is."""
    return Norms(
        weights=_norm(_pieces(model[name]) for name in _trained(manifest)),
        statistics=_norm(_pieces(model[name]) for name in _running(manifest)),
    )


def clip_scales(
    norms: Mapping[str, Norms], weights: Mapping[str, int], *, size: Norms, factor: float
) -> dict[str, Scales]:
    """Of each device whose update pulls more than `factor` times as hard as the median one, what may be left of it."""
    if len(norms) < MIN_PEERS:
        return {}
    middle = statistics.median(weights.values())
    scales: dict[str, list[float]] = {device: [] for device in norms}
    for kind in range(len(Norms._fields)):
        pulls = {device: weights[device] * norms[device][kind] for device in norms}
        bound = factor * max(statistics.median(pulls.values()), NEGLIGIBLE * size[kind] * middle)
        for device, pull in pulls.items():
            scales[device].append(1.0 if pull <= bound else bound / pull)
    return {device: Scales(*found) for device, found in scales.items() if min(found) < 1}


def clip(update: Tensors, base: Tensors, manifest: Manifest, scales: Scales) -> Tensors:
    """The update with its change scaled down; each tensor is made when it is asked for."""
    pruned, running = _can_be_pruned(manifest), frozenset(_running(manifest))

    def make(name: str) -> FloatArray:
        scale = scales.statistics if name in running else scales.weights
        return _scaled(update[name], base[name], scale, keep_zeros=name in pruned)

    return MadeOnDemand(tuple(update), make)


def _scaled(update: FloatArray, base: FloatArray, scale: float, *, keep_zeros: bool) -> FloatArray:
    if scale == 1.0:
        return update
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


def _norm(tensors: Iterable[Iterable[NDArray[np.float64]]]) -> float:
    # Not BLAS, whose sums depend on how many threads it has.
    return math.sqrt(sum(float(np.einsum("i,i->", piece, piece)) for pieces in tensors for piece in pieces))


def _can_be_pruned(manifest: Manifest) -> frozenset[str]:
    """The tensors in which a zero says that the device pruned the entry, and is not a value like others."""
    return frozenset(manifest.prunable if manifest.method.uplink == "weights" else ())


def _trained(manifest: Manifest) -> list[str]:
    return [parameter.name for parameter in manifest.parameters if parameter.trainable]


def _running(manifest: Manifest) -> list[str]:
    return [name for norm in manifest.batch_norms for name in (norm.mean, norm.variance)]
