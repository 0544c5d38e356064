"""Figures about what a round did to the model: numpy and the native codec, no I/O.

Mask figures cover the prunable weights only. Value figures cover every trained tensor with equal weight, without
BatchNorm's running statistics. Updates are measured one at a time as they arrive (aggregation/measures.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sparsyedge.coordinator.aggregation.influence import Share
from sparsyedge.coordinator.aggregation.measures import Measures, distance
from sparsyedge.coordinator.aggregation.round_base import RoundBase
from sparsyedge.coordinator.record.records import Evaluation
from sparsyedge.edge.tensors import Tensors
from sparsyedge.edge.wire.flat_frame import FlatUpdate

__all__ = [
    "CLASS_PREFIX",
    "ERROR_LEVEL_PREFIX",
    "LAYER_PREFIX",
    "LEVEL_PREFIX",
    "figures_of_round",
    "final_figures",
    "iou_matrix",
    "of_evaluation",
    "of_shares",
    "of_single_model",
    "pack_mask",
]

LAYER_PREFIX = "sparsity/"
"""Prefix of per-layer figures; the parameter's name follows."""

CLASS_PREFIX = "accuracy_class/"
LEVEL_PREFIX = "accuracy_at/"
"""Prefix of accuracies at a group's target sparsity, which follows."""
ERROR_LEVEL_PREFIX = "rmse_at/"
"""The same for the errors of a regression."""

_ONES_IN_BYTE = np.array([value.bit_count() for value in range(256)], dtype=np.uint8)


def figures_of_round(
    model: FlatUpdate, *, initial: RoundBase, start: RoundBase, measured: Sequence[Measures]
) -> dict[str, float]:
    """Return all figures of a round by name, for its final model; docs/reference/metrics.md explains them."""
    from_initial, from_start = (base.products(model)[0] for base in (initial, start))
    layout, weights, trained = start.layout, len(start.layout.weights), start.trained
    sizes = np.concatenate([np.diff(layout.weight_starts), np.diff(layout.other_starts)])
    nonzeros = from_start.nonzeros
    common, before, after = from_start.common_nonzeros[:weights].sum(), start.held.sum(), nonzeros[:weights].sum()
    l2_global, cosine_global = distance(from_initial, initial)
    l2_round, cosine_round = distance(from_start, start)
    figures = {
        "sparsity_prunable": _zeros(after, sizes[:weights].sum()),
        "sparsity_all": _zeros(nonzeros[trained].sum(), sizes[trained].sum()),
        "regrown_global": float(after - common),
        "nestedness": float(common / after) if after else 1.0,
        "mask_iou": float(common / (before + after - common)) if before + after else 1.0,
        "l2_global": l2_global,
        "cosine_global": cosine_global,
        "l2_round": l2_round,
        "cosine_round": cosine_round,
    }
    if measured:
        figures |= _spread("l2_device", [each.l2 for each in measured])
        figures |= _spread("cosine_device", [each.cosine for each in measured])
        figures["nonzeros_device"] = sum(each.kept for each in measured) / len(measured)
        # 1 if all devices kept the same weights, 1 / devices if no two kept the same one.
        figures["mask_agreement"] = float(figures["nonzeros_device"] / after) if after else 1.0
    figures |= _multiply_adds(start, nonzeros[:weights], sizes[:weights])
    by_layer = dict(zip(layout.weights, zip(nonzeros[:weights], sizes[:weights], strict=True), strict=True))
    return figures | {f"{LAYER_PREFIX}{name}": _zeros(*by_layer[name]) for name in start.manifest.prunable}


def _multiply_adds(base: RoundBase, nonzeros: NDArray[np.float64], sizes: NDArray[np.int64]) -> dict[str, float]:
    """The share of a dense model's multiply-adds that the non-zero weights take; missing if an export counts none."""
    positions = base.manifest.positions
    places = np.array([positions[name] for name in base.layout.weights], dtype=np.float64)
    dense = float(places @ sizes)
    return {"multiply_adds": float(places @ nonzeros) / dense} if dense else {}


def _zeros(nonzeros: float, size: float) -> float:
    return float(1.0 - nonzeros / size) if size else 0.0


def final_figures(evaluation: Evaluation) -> dict[str, float]:
    """Return the figures of the last model on a test part that no earlier round was evaluated on."""
    return _quality("final_test", evaluation)


def of_single_model(evaluation: Evaluation) -> dict[str, float]:
    """Return the figures of a round's own model, where the evaluation of the round is that of an average."""
    return _quality("single", evaluation)


def _quality(prefix: str, evaluation: Evaluation) -> dict[str, float]:
    found = {"accuracy": evaluation.accuracy, "loss": evaluation.loss, "rmse": evaluation.rmse}
    return {f"{prefix}_{name}": value for name, value in found.items() if value is not None}


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


def _spread(name: str, values: list[float]) -> dict[str, float]:
    mean = _mean(values)
    deviation = math.sqrt(_mean([(value - mean) ** 2 for value in values]))
    return {f"{name}_mean": mean, f"{name}_min": min(values), f"{name}_max": max(values), f"{name}_std": deviation}


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan
