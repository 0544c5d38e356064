"""What a round did to the model, in figures: numpy only, no I/O.

Figures of masks are taken over the prunable weights alone; those of values over every trained tensor, each tensor
counting the same, and BatchNorm's running statistics are left out. Updates are looked at one at a time while they are
averaged, so memory does not grow with the cohort.

    metrics = RoundMetrics(manifest, initial=..., start=...)
    state = average(metrics.watch(updates))
    figures = metrics.finish(state)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsyedge.coordinator.aggregation.influence import Share
from sparsyedge.coordinator.record.records import Evaluation
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.tensors import FloatArray, Tensors, count_nonzero

__all__ = [
    "CLASS_PREFIX",
    "LAYER_PREFIX",
    "LEVEL_PREFIX",
    "RoundMetrics",
    "distance",
    "iou_matrix",
    "of_evaluation",
    "of_shares",
    "pack_mask",
]

LAYER_PREFIX = "sparsity/"
"""Begins the names of the figures of single layers; the parameter's name follows."""

CLASS_PREFIX = "accuracy_class/"
LEVEL_PREFIX = "accuracy_at/"
"""Begins the names of the accuracies at a group's target, which follows."""

PIECE = 1 << 16
"""Entries that are looked at in float64 at a time."""

_ONES_IN_BYTE = np.array([value.bit_count() for value in range(256)], dtype=np.uint8)


class RoundMetrics:
    """The figures of one round, from the model that it started with, its updates and what came of them."""

    def __init__(self, manifest: Manifest, *, initial: Tensors, start: Tensors) -> None:
        self._prunable = manifest.prunable
        self._trained = tuple(parameter.name for parameter in manifest.parameters if parameter.trainable)
        self._initial = initial
        self._start = start
        self._moves: list[tuple[float, float]] = []
        self._kept: list[int] = []

    def watch(self, updates: Iterable[tuple[int, Tensors]]) -> Iterator[tuple[int, Tensors]]:
        """The same updates, looked at as they pass."""
        for samples, state in updates:
            self._kept.append(0)
            self._moves.append(_distance(self._pairs(state)))
            yield samples, state
            # Let go before the next one is decoded.
            del state

    def _pairs(self, state: Tensors) -> Iterator[tuple[FloatArray, FloatArray]]:
        """What each trained tensor was and is; an update makes every tensor anew, so all is counted in one pass."""
        for name in self._trained:
            tensor = state[name]
            if name in self._prunable:
                self._kept[-1] += int(np.count_nonzero(tensor))
            yield self._start[name], tensor

    def finish(self, state: Tensors) -> dict[str, float]:
        """All figures, by name, for the model that the round ended with; docs/reference/metrics.md explains each."""
        common, before, after = _overlap(self._start, state, self._prunable)
        l2_global, cosine_global = distance(self._initial, state, self._trained)
        l2_round, cosine_round = distance(self._start, state, self._trained)
        figures = {
            "sparsity_prunable": _sparsity(state, self._prunable),
            "sparsity_all": _sparsity(state, self._trained),
            "regrown_global": float(after - common),
            "nestedness": common / after if after else 1.0,
            "mask_iou": common / (before + after - common) if before + after else 1.0,
            "l2_global": l2_global,
            "cosine_global": cosine_global,
            "l2_round": l2_round,
            "cosine_round": cosine_round,
        }
        if self._moves:
            figures |= _spread("l2_device", [l2 for l2, _ in self._moves])
            figures |= _spread("cosine_device", [cosine for _, cosine in self._moves])
            figures["nonzeros_device"] = sum(self._kept) / len(self._kept)
            # 1 where all devices kept the same weights, 1 / devices where no two kept the same one.
            figures["mask_agreement"] = figures["nonzeros_device"] / after if after else 1.0
        figures |= {f"{LAYER_PREFIX}{name}": _sparsity(state, [name]) for name in self._prunable}
        return figures


def of_evaluation(evaluation: Evaluation | None) -> dict[str, float]:
    """The accuracy on each class, and over the devices where their data is known, as figures."""
    if evaluation is None:
        return {}
    figures = {f"{CLASS_PREFIX}{label}": accuracy for label, accuracy in enumerate(evaluation.by_class)}
    return figures | (_spread("accuracy_devices", list(evaluation.by_device)) if evaluation.by_device else {})


def of_shares(shares: Mapping[str, Share]) -> dict[str, float]:
    """How many updates counted for less than their devices would have them."""
    return {
        "clipped_devices": float(sum(0 < share.clipped < 1 for share in shares.values())),
        "left_out_devices": float(sum(share.left_out for share in shares.values())),
        "cut_claims": float(sum(share.cut for share in shares.values())),
    }


def distance(first: Tensors, second: Tensors, names: Sequence[str]) -> tuple[float, float]:
    """The mean over the tensors of their L2 distance, and of their cosine where neither is all zero."""
    return _distance((first[name], second[name]) for name in names)


def _distance(pairs: Iterable[tuple[FloatArray, FloatArray]]) -> tuple[float, float]:
    l2s, cosines = [], []
    for first, second in pairs:
        products = _products(first.reshape(-1), second.reshape(-1))
        l2s.append(math.sqrt(products.difference))
        norms = math.sqrt(products.first) * math.sqrt(products.second)
        if norms > 0:
            cosines.append(products.mixed / norms)
    return _mean(l2s), _mean(cosines)


class _Products(NamedTuple):
    """Inner products of two tensors a and b: (a - b)², a², b² and ab."""

    difference: float
    first: float
    second: float
    mixed: float


def _products(first: FloatArray, second: FloatArray) -> _Products:
    # In float64, since float32 sums over millions of entries lose the small differences; a piece at a time, since this
    # happens beside the sum of all updates.
    totals = np.zeros(len(_Products._fields))
    for start in range(0, first.size, PIECE):
        a = first[start : start + PIECE].astype(np.float64)
        b = second[start : start + PIECE].astype(np.float64)
        difference = a - b
        totals += (_inner(difference, difference), _inner(a, a), _inner(b, b), _inner(a, b))
    return _Products(*totals.tolist())


def _inner(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    # Not a @ b: BLAS gives a piece to each core and waits for it in a loop, which on a busy machine takes longer than
    # the sums.
    return float(np.einsum("i,i->", a, b))


def pack_mask(state: Tensors, names: Sequence[str]) -> bytes:
    """Which weights of the named tensors are not zero, one bit each, in the order of names and memory."""
    return np.packbits(np.concatenate([state[name].reshape(-1) != 0 for name in names])).tobytes()


def iou_matrix(masks: Sequence[bytes]) -> NDArray[np.float64]:
    """The overlap (intersection over union) of every two packed masks; 1 on the diagonal."""
    packed = [np.frombuffer(mask, dtype=np.uint8) for mask in masks]
    overlap = np.ones((len(packed), len(packed)))
    for i, first in enumerate(packed):
        for j in range(i):
            union = _ones(first | packed[j])
            overlap[i, j] = overlap[j, i] = _ones(first & packed[j]) / union if union else 1.0
    return overlap


def _ones(packed: NDArray[np.uint8]) -> int:
    return int(_ONES_IN_BYTE[packed].sum(dtype=np.int64))


def _overlap(first: Tensors, second: Tensors, names: Sequence[str]) -> tuple[int, int, int]:
    """How many weights are not zero in both, in the first and in the second."""
    common = sum(int(np.count_nonzero((first[name] != 0) & (second[name] != 0))) for name in names)
    return common, count_nonzero(first, names), count_nonzero(second, names)


def _sparsity(state: Tensors, names: Sequence[str]) -> float:
    size = sum(state[name].size for name in names)
    return 1.0 - count_nonzero(state, names) / size if size else 0.0


def _spread(name: str, values: list[float]) -> dict[str, float]:
    mean = _mean(values)
    deviation = math.sqrt(_mean([(value - mean) ** 2 for value in values]))
    return {f"{name}_mean": mean, f"{name}_min": min(values), f"{name}_max": max(values), f"{name}_std": deviation}


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan
