"""Blocks of entries from all updates of a round, as matrices of devices and positions: what robust rules look at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsyedge.coordinator.aggregation.mean import stretches
from sparsyedge.coordinator.aggregation.round_base import RoundBase
from sparsyedge.coordinator.aggregation.round_entries import Listed, RoundEntries
from sparsyedge.edge.tensors import FloatArray

__all__ = ["EntryBlock", "entry_stretches", "kept_places", "other_blocks", "weight_blocks"]

BLOCK_ENTRIES = 1 << 21
"""Entries per matrix, over all devices."""
MOST_BLOCKS = 4


class EntryBlock(NamedTuple):
    """The entries that at least one device keeps; all others have their rest value."""

    positions: NDArray[np.int64]
    values: FloatArray
    """(devices, positions)."""
    rest: FloatArray
    """Per position, the value for devices that do not keep it."""
    kept: NDArray[np.bool_]
    """(devices, positions): whether the device keeps it."""


def entry_stretches(updates: RoundEntries) -> Iterator[tuple[int, int]]:
    """Stretches of the weights that are short enough to look at all devices at once."""
    devices = max(1, len(updates.members))
    return stretches(updates.blocks, min(MOST_BLOCKS, max(1, BLOCK_ENTRIES // devices // updates.block)))


def weight_blocks(updates: RoundEntries, first: int, last: int) -> Iterator[EntryBlock]:
    """The entries of the weights from block `first` up to block `last`, in order."""
    found = [listed for _, listed in updates.listed(first, last)]
    columns = max(1, BLOCK_ENTRIES // max(1, len(updates.members)))
    yield from _cut(found, updates.base, first * updates.block, updates.size(first, last), columns=columns)


def other_blocks(updates: RoundEntries) -> Iterator[EntryBlock]:
    """The entries of all tensors that are not pruned; every device has all of them. Frozen ones are left out."""
    places = np.flatnonzero(updates.moving)
    length = max(1, BLOCK_ENTRIES // max(1, len(updates.members)))
    for start in range(0, places.size, length):
        positions = places[start : start + length]
        values = np.stack([updates.others(member)[start : start + length] for member in updates.members])
        rest = np.zeros(positions.size, dtype=np.float32)
        yield EntryBlock(positions, values, rest, np.ones(values.shape, dtype=np.bool_))


def kept_places(listed: Listed, base: RoundBase, start: int, size: int) -> tuple[NDArray[np.int64], FloatArray]:
    """The places in a stretch that a device keeps, increasing, and its values there."""
    if listed.positions is not None:
        places = listed.positions.astype(np.int64) - start
        if listed.values.all():
            return places, listed.values
        nonzero = np.flatnonzero(listed.values)
        return places[nonzero], listed.values[nonzero]
    if base.manifest.method.uplink == "whole":
        return np.arange(size), listed.values
    places = np.flatnonzero(listed.values != _rest(base, start, size))
    return places, listed.values[places]


def _rest(base: RoundBase, start: int, size: int) -> FloatArray:
    """The values of the entries that a device does not keep."""
    if base.manifest.method.uplink == "delta":
        return base.flat.weights[start : start + size]
    return np.zeros(size, dtype=np.float32)


def _cut(found: Sequence[Listed], base: RoundBase, start: int, size: int, *, columns: int) -> Iterator[EntryBlock]:
    """One stretch of all updates, without the entries that nobody keeps, in matrices of bounded size."""
    rest = _rest(base, start, size)
    kept = [kept_places(listed, base, start, size) for listed in found]
    touched = np.zeros(size, dtype=np.bool_)
    for places, _ in kept:
        touched[places] = True
    union = np.flatnonzero(touched)
    for first in range(0, union.size, columns):
        part = union[first : first + columns]
        values = np.repeat(rest[part][np.newaxis], len(found), axis=0)
        flags = np.zeros(values.shape, dtype=np.bool_)
        for row, (places, own) in enumerate(kept):
            inside = slice(*np.searchsorted(places, (part[0], part[-1] + 1)))
            column = np.searchsorted(part, places[inside])
            values[row, column], flags[row, column] = own[inside], True
        yield EntryBlock(part + start, values, rest[part], flags)
