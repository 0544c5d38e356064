"""Federated averaging, a stretch of the model at a time: numpy and the native codec, no I/O of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from sparsyedge.coordinator.aggregation.round_entries import Listed, RoundEntries
from sparsyedge.edge.tensors import FloatArray
from sparsyedge.edge.wire import native_codec as native
from sparsyedge.edge.wire.flat_frame import FlatUpdate
from sparsyedge.edge.wire.native_codec import Positions

__all__ = ["average", "gathered", "means_of_stretches", "stretches"]

Numbers = NDArray[np.float64]

STRETCH_BLOCKS = 32
"""Half a million entries: their sums take 4 MB."""


def average(updates: RoundEntries, *, senders_only: bool = False) -> FlatUpdate:
    """Average the updates by weight, BatchNorm's statistics included; needs at least one update.

    With `senders_only`, a weight is averaged over the devices that sent it; one that nobody sent is zero. The bits of
    the result depend on the order of the updates: they come in device order.
    """
    total = sum(member.weight for member in updates.members)
    if total == 0:
        raise ValueError("average of no updates")
    cut = list(stretches(updates.blocks))
    means = means_of_stretches if updates.workers is None else updates.workers.means
    parts = means(updates, cut, total=total, senders_only=senders_only)
    return gathered(parts, _mean_of_others(updates, total), updates)


def stretches(blocks: int, length: int = STRETCH_BLOCKS) -> Iterator[tuple[int, int]]:
    """The first block of each stretch, and the one after its last."""
    return ((first, min(first + length, blocks)) for first in range(0, blocks, length))


def means_of_stretches(
    updates: RoundEntries, cut: Sequence[tuple[int, int]], *, total: float, senders_only: bool
) -> Iterator[tuple[int, FloatArray]]:
    """The start and the mean of each stretch, in order."""
    for first, last in cut:
        yield first * updates.block, _mean_of_stretch(updates, first, last, total, senders_only=senders_only)


def _mean_of_stretch(updates: RoundEntries, first: int, last: int, total: float, *, senders_only: bool) -> FloatArray:
    size = updates.size(first, last)
    sums, senders = np.zeros(size), np.zeros(size if senders_only else 0)
    for weight, listed in updates.listed(first, last):
        _add(sums, listed, weight, first * updates.block)
        if senders_only:
            sent = Listed(listed.positions, (listed.values != 0).astype(np.float32))
            _add(senders, sent, weight, first * updates.block)
    mean = _to_float32(sums, total)
    if senders_only:
        scale = np.divide(total, senders, out=np.zeros_like(senders), where=senders > 0)
        mean = (mean * scale).astype(np.float32)
    return mean


def _add(sums: Numbers, listed: Listed, weight: float, first: int) -> None:
    # Multiply in float64: an entry that is zero on every device stays exactly zero, and only the final rounding
    # matters.
    if listed.positions is None:
        sums += np.multiply(listed.values, np.float64(weight), dtype=np.float64)
    else:
        native.add_entries(listed.positions, listed.values, first=first, weight=weight, sums=sums)


def _mean_of_others(updates: RoundEntries, total: float) -> FloatArray:
    """The mean of the tensors that are not pruned; frozen ones stay as they are."""
    base = updates.base.flat.others
    sums = np.zeros(int(updates.moving.sum()))
    for member in updates.members:
        sums += np.multiply(updates.others(member), np.float64(member.weight), dtype=np.float64)
    mean = base.copy()
    mean[updates.moving] = _to_float32(sums, total)
    return mean


def _to_float32(summed: Numbers, total: float) -> FloatArray:
    np.divide(summed, np.float64(total), out=summed)
    mean = summed.astype(np.float32)
    # A tiny negative mean may round to -0.0, which costs an entry on the wire and changes the model's hash.
    mean += np.float32(0.0)
    return mean


def gathered(parts: Iterator[tuple[int, FloatArray]], others: FloatArray, updates: RoundEntries) -> FlatUpdate:
    """A model from stretches of its weights, zero elsewhere; without its zeros, unless they are the minority.

    Where devices prune their changes, entries outside the stretches stay as they are in the base.
    """
    size = updates.base.layout.weight_entries
    positions: list[Positions] = []
    values: list[FloatArray] = []
    dense = updates.base.flat.weights.copy() if updates.base.manifest.method.uplink == "delta" else None
    count = 0
    for start, part in parts:
        if dense is not None:
            dense[start : start + part.size] = part
            continue
        kept = np.flatnonzero(part)
        positions.append((kept + start).astype(np.uint32))
        values.append(part[kept])
        count += kept.size
        if 2 * count > size:
            dense = np.zeros(size, dtype=np.float32)
            for places, found in zip(positions, values, strict=True):
                dense[places] = found
            positions, values = [], []
    if dense is not None:
        return FlatUpdate(None, dense, others, size + others.size)
    nothing = np.empty(0, dtype=np.uint32)
    merged = np.concatenate(positions or [nothing])
    # Free one list before joining the other: in round 1 the devices' masks differ, and the model has many entries.
    positions.clear()
    found = np.concatenate(values or [nothing.view(np.float32)])
    return FlatUpdate(merged, found, others, merged.size + others.size)
