"""The entries of many devices in one stretch of the model, one device after the other in memory.

A round has thousands of pairs of a device and a stretch, and a call from Python for each takes longer than its work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsyedge.coordinator.aggregation.entry_blocks import kept_places
from sparsyedge.coordinator.aggregation.round_entries import WORD_BYTES, Member, RoundEntries
from sparsyedge.edge.tensors import FloatArray
from sparsyedge.edge.wire import native_codec as native
from sparsyedge.edge.wire.native_codec import Positions

__all__ = ["Gathered", "gather"]


class Gathered(NamedTuple):
    """What some devices keep in a stretch: device `r` of them from `ends[r]` to `ends[r + 1]`."""

    positions: Positions
    values: FloatArray
    ends: NDArray[np.int64]


class _Range(NamedTuple):
    """Where the entries of one device in a stretch lie in its file."""

    file: int
    positions_at: int
    values_at: int
    entries: int


def gather(updates: RoundEntries, devices: Sequence[int], first: int, last: int) -> Gathered:
    """Read what these devices keep from block `first` up to block `last`, which is not included."""
    members = [updates.members[device] for device in devices]
    plain = [_range_of(updates, member, first, last) for member in members]
    # Clipped updates, and those that list all entries, are made into lists one by one.
    others = {row: _listed(updates, members[row], first, last) for row, found in enumerate(plain) if found is None}
    ends = np.zeros(len(members) + 1, dtype=np.int64)
    np.cumsum(
        [others[row][0].size if found is None else found.entries for row, found in enumerate(plain)], out=ends[1:]
    )
    positions, values = np.empty(ends[-1], dtype=np.uint32), np.empty(ends[-1], dtype=np.float32)
    for row, (places, found) in others.items():
        positions[ends[row] : ends[row + 1]], values[ends[row] : ends[row + 1]] = places, found
    rows = [row for row, found in enumerate(plain) if found is not None]
    if rows:
        table = np.array([plain[row] for row in rows], dtype=np.int64)
        files, sizes, starts = table[:, 0].astype(np.int32), table[:, 3].copy(), ends[rows]
        native.read_ranges(files, table[:, 1].copy(), sizes, starts, positions)
        native.read_ranges(files, table[:, 2].copy(), sizes, starts, values)
    return Gathered(positions, values, ends)


def _range_of(updates: RoundEntries, member: Member, first: int, last: int) -> _Range | None:
    """The device's entries in its file; None if they need work before they count."""
    place = member.place
    if member.scales or place.ends is None:
        return None
    start, stop = int(place.ends[first]), int(place.ends[last])
    positions_at = place.offset + WORD_BYTES * start
    return _Range(
        updates.files[place.file].handle, positions_at, positions_at + WORD_BYTES * place.entries, stop - start
    )


def _listed(updates: RoundEntries, member: Member, first: int, last: int) -> tuple[Positions, FloatArray]:
    """What a device keeps in the stretch."""
    entries, start = updates.entries(member, first, last), first * updates.block
    if entries.positions is not None:
        return entries.positions, entries.values
    places, values = kept_places(entries, updates.base, start, updates.size(first, last))
    return (places + start).astype(np.uint32), values
