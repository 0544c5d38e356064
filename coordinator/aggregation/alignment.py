"""Inner products of the changes that devices made, a stretch of the model and a few devices at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsyedge.coordinator.aggregation.gathered_entries import Gathered, gather
from sparsyedge.coordinator.aggregation.mean import stretches
from sparsyedge.coordinator.aggregation.round_entries import RoundEntries
from sparsyedge.edge.tensors import FloatArray
from sparsyedge.edge.wire import native_codec as native

__all__ = ["Comparison", "compare", "compare_stretches"]

Numbers = NDArray[np.float64]

PARTS = 8
"""Into how many parts the model is cut, for workers to share; the bits of a product depend on it."""
MOST_BLOCKS = 16
MOST_ENTRIES = 1 << 19
"""Of all peers together, in one stretch."""
MOST_COLUMNS = 1 << 12
OTHER_ENTRIES = 1 << 20
"""Of all peers, in one stretch of the tensors that are not pruned."""
DEVICES = 256
"""Rows of a matrix at most."""
FEW_DEVICES = 32
"""The same where a row has all entries of the tensors that are not pruned."""


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
    # The bits depend on how the model is cut, so the cut must not depend on the number of workers.
    parts = list(stretches(updates.blocks, max(1, -(-updates.blocks // PARTS))))
    comparisons = compare_stretches if updates.workers is None else updates.workers.comparisons
    for products, squares in comparisons(updates, parts, peers):
        found.products[...] += products
        found.squares[...] += squares
    _compare_others(updates, found)
    return found


def compare_stretches(
    updates: RoundEntries, parts: Sequence[tuple[int, int]], peers: Sequence[int]
) -> Iterator[tuple[Numbers, Numbers]]:
    """The products and squares of each part of the weights, in order."""
    devices = len(updates.members)
    for begin, end in parts:
        found = Comparison(np.zeros((devices, len(peers))), np.zeros(devices), peers)
        for first, last in _cut(updates, peers, begin, end):
            _compare_weights(updates, found, first, last)
        yield found.products, found.squares


def _cut(updates: RoundEntries, peers: Sequence[int], begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Stretches in which the peers have few enough entries to hold them all; at least a block."""
    block, held = updates.block, np.zeros(end - begin, dtype=np.int64)
    for device in peers:
        ends = updates.members[device].place.ends
        held += block if ends is None else np.diff(ends[begin : end + 1])
    first = begin
    while first < end:
        totals = np.cumsum(held[first - begin : first - begin + MOST_BLOCKS])
        last = first + max(1, int(np.searchsorted(totals, MOST_ENTRIES, side="right")))
        yield first, min(last, end)
        first = last


def _compare_weights(updates: RoundEntries, found: Comparison, first: int, last: int) -> None:
    """Add what one stretch of the weights contributes."""
    start = first * updates.block
    near = updates.base.flat.weights[start : start + updates.size(first, last)]
    peers = gather(updates, found.peers, first, last)
    touched = np.zeros(near.size, dtype=np.bool_)
    touched[peers.positions - np.uint32(start)] = True
    parts = _columns(touched)
    if len(found.peers) == len(updates.members):
        for columns in parts:
            rows, squares = _matrix(peers, columns, near, start)
            # numpy takes half the time for a matrix and its own transpose.
            found.products[...] += rows @ rows.T
            if columns is parts[0]:
                found.squares[...] += squares
        return
    # Memory holds the peers' changes for one table of columns; there is seldom more than one.
    theirs = _matrix(peers, parts[0], near, start)[0] if len(parts) == 1 else None
    for chunk in _chunks(len(updates.members)):
        own, place = gather(updates, chunk, first, last), slice(chunk.start, chunk.stop)
        for columns in parts:
            rows, squares = _matrix(own, columns, near, start)
            others = _matrix(peers, columns, near, start)[0] if theirs is None else theirs
            found.products[place] += rows @ others.T
            if columns is parts[0]:
                found.squares[place] += squares


def _columns(touched: NDArray[np.bool_]) -> list[NDArray[np.int32]]:
    """Tables of the columns of places, -1 where there is none; more than one if there are many places."""
    places, tables = np.flatnonzero(touched), []
    for begin in range(0, max(1, places.size), MOST_COLUMNS):
        table = np.full(touched.size, -1, dtype=np.int32)
        part = places[begin : begin + MOST_COLUMNS]
        table[part] = np.arange(part.size)
        tables.append(table)
    return tables


def _matrix(gathered: Gathered, columns: NDArray[np.int32], base: FloatArray, start: int) -> tuple[Numbers, Numbers]:
    """The changes in these columns, one row per device, and the square of each device's whole change."""
    positions, values, ends = gathered
    matrix = np.zeros((ends.size - 1, int(columns.max(initial=-1)) + 1))
    squares = native.scatter_changes(positions, values, ends, base=base, first=start, columns=columns, matrix=matrix)
    return matrix, squares


def _chunks(devices: int, length: int = DEVICES) -> Iterator[range]:
    return (range(start, min(start + length, devices)) for start in range(0, devices, length))


def _compare_others(updates: RoundEntries, found: Comparison) -> None:
    base = updates.base
    trained = np.repeat(base.trained[len(base.layout.weights) :], np.diff(base.layout.other_starts))[updates.moving]
    near = base.flat.others[updates.moving][trained].astype(np.float64)
    length = max(1, OTHER_ENTRIES // max(1, len(found.peers)))

    def changes(devices: Sequence[int], part: slice) -> Numbers:
        rows = np.empty((len(devices), near[part].size))
        for row, device in enumerate(devices):
            np.subtract(updates.others(updates.members[device])[trained][part], near[part], out=rows[row])
        return rows

    for start in range(0, near.size, length):
        part = slice(start, start + length)
        theirs = changes(found.peers, part)
        for chunk in _chunks(len(updates.members), FEW_DEVICES):
            rows = changes(chunk, part)
            found.squares[list(chunk)] += np.einsum("ij,ij->i", rows, rows)
            found.products[list(chunk)] += rows @ theirs.T
