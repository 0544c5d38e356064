"""Figures about what a round did to the model: numpy only, no I/O.

Mask figures cover the prunable weights only. Value figures cover every trained tensor with equal weight, without
BatchNorm's running statistics. We measure updates one at a time while they are averaged, so memory does not grow with
the cohort.

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
    "ERROR_LEVEL_PREFIX",
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
"""Prefix of per-layer figures; the parameter's name follows."""

CLASS_PREFIX = "accuracy_class/"
LEVEL_PREFIX = "accuracy_at/"
"""Prefix of accuracies at a group's target sparsity, which follows."""
ERROR_LEVEL_PREFIX = "rmse_at/"
"""The same for the errors of a regression."""

PIECE = 1 << 16
"""Entries to convert to float64 at a time."""

_ONES_IN_BYTE = np.array([value.bit_count() for value in range(256)], dtype=np.uint8)


class RoundMetrics:
    """The figures of one round, computed from its start model, its updates and its result."""

    def __init__(self, manifest: Manifest, *, initial: Tensors, start: Tensors) -> None:
        self._prunable = manifest.prunable
        self._trained = tuple(parameter.name for parameter in manifest.parameters if parameter.trainable)
        self._initial = initial
        self._start = start
        self._moves: list[tuple[float, float]] = []
        self._kept: list[int] = []

    def watch(self, updates: Iterable[tuple[int, Tensors]]) -> Iterator[tuple[int, Tensors]]:
        """Pass the updates through and measure each."""
        for samples, state in updates:
            self._kept.append(0)
            self._moves.append(_distance(self._pairs(state)))
            yield samples, state
            # Free it before the next one is decoded.
            del state

    def _pairs(self, state: Tensors) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Yield each trained tensor before and after. Access rebuilds it, so this pass also counts kept weights."""
        for name in self._trained:
            tensor = state[name]
            if name in self._prunable:
                self._kept[-1] += int(np.count_nonzero(tensor))
            yield self._start[name], tensor

    def finish(self, state: Tensors) -> dict[str, float]:
        """Return all figures by name for the round's final model; docs/reference/metrics.md explains them."""
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
            # 1 if all devices kept the same weights, 1 / devices if no two kept the same one.
            figures["mask_agreement"] = figures["nonzeros_device"] / after if after else 1.0
        figures |= {f"{LAYER_PREFIX}{name}": _sparsity(state, [name]) for name in self._prunable}
        return figures


def of_evaluation(evaluation: Evaluation | None) -> dict[str, float]:
    """Return the accuracies by class, and their spread over the devices if their label mixes are known, as figures.

    A regression has its errors instead.
    """
    if evaluation is None:
        return {}
    if evaluation.rmse is not None:
        explained = evaluation.r_squared
        return {"test_rmse": evaluation.rmse} | ({} if explained is None else {"test_r_squared": explained})
    figures = {f"{CLASS_PREFIX}{label}": accuracy for label, accuracy in enumerate(evaluation.by_class)}
    return figures | (_spread("accuracy_devices", list(evaluation.by_device)) if evaluation.by_device else {})


def of_shares(shares: Mapping[str, Share]) -> dict[str, float]:
    """Count the updates that were clipped, left out, or had their claims cut."""
    return {
        "clipped_devices": float(sum(0 < share.clipped < 1 for share in shares.values())),
        "left_out_devices": float(sum(share.left_out for share in shares.values())),
        "cut_claims": float(sum(share.cut for share in shares.values())),
    }


def distance(first: Tensors, second: Tensors, names: Sequence[str]) -> tuple[float, float]:
    """Return the L2 distance and the cosine, averaged over the tensors; the cosine skips all-zero tensors."""
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
    # Use float64: float32 sums over millions of entries lose small differences. Work in pieces, because the sum of all
    # updates is in memory too.
    totals = np.zeros(len(_Products._fields))
    for start in range(0, first.size, PIECE):
        a = first[start : start + PIECE].astype(np.float64)
        b = second[start : start + PIECE].astype(np.float64)
        difference = a - b
        totals += (_inner(difference, difference), _inner(a, a), _inner(b, b), _inner(a, b))
    return _Products(*totals.tolist())


def _inner(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    # Not a @ b: BLAS splits the work over all cores and busy-waits for them, which takes longer than the sums on a busy
    # machine.
    return float(np.einsum("i,i->", a, b))


def pack_mask(state: Tensors, names: Sequence[str]) -> bytes:
    """Pack which weights of the named tensors are not zero, one bit each, in order of names and memory."""
    return np.packbits(np.concatenate([state[name].reshape(-1) != 0 for name in names])).tobytes()


def iou_matrix(masks: Sequence[bytes]) -> NDArray[np.float64]:
    """Return the intersection over union of every pair of packed masks; 1 on the diagonal."""
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
    """Count the weights that are non-zero in both states, in the first, and in the second."""
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
