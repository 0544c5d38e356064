"""Inner products of the changes that devices made, a stretch of the model and a few devices at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsyedge.coordinator.aggregation.entry_blocks import kept_places
from sparsyedge.coordinator.aggregation.mean import stretches
from sparsyedge.coordinator.aggregation.round_entries import RoundEntries

__all__ = ["Comparison", "compare"]

Numbers = NDArray[np.float64]
Change = tuple[NDArray[np.int64], Numbers]
"""Places in a stretch, and the change there."""

MOST_BLOCKS = 4
MOST_COLUMNS = 1 << 13
DEVICES = 256
"""Rows of a matrix."""


class Comparison(NamedTuple):
    """How the changes of all devices of a round relate to those of some of them."""

    products: Numbers
    """(devices, peers)."""
    squares: Numbers
    """Of each device with itself."""
    peers: Sequence[int]


def compare(updates: RoundEntries, peers: Sequence[int]) -> Comparison:
    """The inner products of each device's change with its peers'; what a device does not keep counts as unchanged.

    Only tensors that steps change count.
    """
    devices = len(updates.members)
    found = Comparison(np.zeros((devices, len(peers))), np.zeros(devices), peers)
    for first, last in stretches(updates.blocks, MOST_BLOCKS):
        _compare_weights(updates, found, first, last)
    _compare_others(updates, found)
    return found


def _compare_weights(updates: RoundEntries, found: Comparison, first: int, last: int) -> None:
    """Add what one stretch of the weights contributes."""
    base, start = updates.base, first * updates.block
    near = base.flat.weights[start : min(last * updates.block, base.layout.weight_entries)]

    def change(device: int) -> Change:
        listed = updates.entries(updates.members[device], first, last)
        places, values = kept_places(listed, base, start, near.size)
        return places, values.astype(np.float64) - near[places]

    known = {device: change(device) for device in found.peers}
    touched = np.zeros(near.size, dtype=np.bool_)
    for places, _ in known.values():
        touched[places] = True
    columns = np.flatnonzero(touched)
    everybody = len(known) == len(updates.members)
    chunks: Iterable[Mapping[int, Change]] = [known]
    if not everybody:
        chunks = ({device: change(device) for device in chunk} for chunk in _chunks(len(updates.members)))
    for chunk in chunks:
        for device, (_, values) in chunk.items():
            found.squares[device] += np.einsum("i,i->", values, values)
        for begin in range(0, columns.size, MOST_COLUMNS):
            part = columns[begin : begin + MOST_COLUMNS]
            theirs = _matrix(known, part)
            # numpy takes half the time for a matrix and its own transpose.
            found.products[list(chunk)] += (theirs if everybody else _matrix(chunk, part)) @ theirs.T


def _chunks(devices: int) -> Iterator[range]:
    return (range(start, min(start + DEVICES, devices)) for start in range(0, devices, DEVICES))


def _matrix(changes: Mapping[int, Change], columns: NDArray[np.int64]) -> Numbers:
    """The changes at these places, one row per device."""
    lookup = np.full(int(columns[-1]) + 1 - int(columns[0]), -1, dtype=np.int64)
    lookup[columns - columns[0]] = np.arange(columns.size)
    matrix = np.zeros((len(changes), columns.size))
    for row, (places, values) in enumerate(changes.values()):
        inside = slice(*np.searchsorted(places, (columns[0], columns[-1] + 1)))
        column = lookup[places[inside] - columns[0]]
        known = column >= 0
        matrix[row, column[known]] = values[inside][known]
    return matrix


def _compare_others(updates: RoundEntries, found: Comparison) -> None:
    base = updates.base
    trained = np.repeat(base.trained[len(base.layout.weights) :], np.diff(base.layout.other_starts))[updates.moving]
    near = base.flat.others[updates.moving][trained].astype(np.float64)

    def changes(devices: Sequence[int]) -> Numbers:
        return np.stack([updates.others(updates.members[device])[trained] - near for device in devices])

    theirs = changes(found.peers)
    for chunk in _chunks(len(updates.members)):
        rows = changes(chunk)
        found.squares[list(chunk)] += np.einsum("ij,ij->i", rows, rows)
        found.products[list(chunk)] += rows @ theirs.T
