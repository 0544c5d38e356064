"""The updates of a round side by side: any stretch of the model from all devices, without whole updates in memory.

Rules that compare devices, and sums in device order, need all updates at once. Each is decoded once, when it arrives,
and its entries go to an unnamed file; memory holds where they are. The file is lost with the process: whoever resumes
the round decodes the accepted updates again.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from sparsyedge.coordinator.aggregation.round_base import RoundBase
from sparsyedge.coordinator.aggregation_config import AggregationConfig
from sparsyedge.edge.tensors import FloatArray
from sparsyedge.edge.wire.flat_frame import FlatUpdate
from sparsyedge.edge.wire.flat_layout import first_at
from sparsyedge.edge.wire.native_codec import Positions

__all__ = ["BLOCK", "WORD_BYTES", "EntryFile", "Listed", "Member", "Place", "RoundEntries", "StretchWorkers"]

BLOCK = 1 << 14
"""Entries of the model per block, the step of the index; stretches start and end at blocks."""
WORD_BYTES = 4


class Place(NamedTuple):
    """Where an update lies in a file."""

    offset: int
    entries: int
    ends: NDArray[np.int32] | None
    """How many entries lie before each block; None if the update has all entries."""
    file: int = 0
    """Which of the round's files it is in: each worker process writes its own."""


class Listed(NamedTuple):
    """The entries of one update in a stretch."""

    positions: Positions | None
    """None if it has all of them."""
    values: FloatArray


class EntryFile:
    """An unnamed file with the entries of updates, in any order."""

    def __init__(self, handle: int, base: RoundBase, *, number: int = 0, block: int = BLOCK) -> None:
        """Use an open file; it is closed with this object. `number` says which of the round's files it is."""
        self.handle = handle
        self._number = number
        self.close = weakref.finalize(self, os.close, handle)
        """Give the disk's space back."""
        self.block = block
        """Entries of the model per step of the index."""
        self.blocks = -(-base.layout.weight_entries // block)
        self.moving = _moving_of(base)
        """Which entries of the other tensors are not frozen."""
        self._bounds = np.arange(self.blocks + 1, dtype=np.int64) * block
        self._moving = None if self.moving.all() else np.flatnonzero(self.moving)
        self._others = int(self.moving.sum())
        self.end = 0
        """Where the next update goes."""

    @classmethod
    def create(cls, folder: Path, base: RoundBase, *, number: int = 0, block: int = BLOCK) -> Self:
        """A new file without a name in this folder: it disappears with this process, however that ends."""
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder)
        Path(name).unlink()
        return cls(handle, base, number=number, block=block)

    def append(self, update: FlatUpdate) -> Place:
        """Write an update; nothing of it needs to survive this process."""
        others = update.others if self._moving is None else update.others[self._moving]
        parts = [update.values, others] if update.positions is None else [update.positions, update.values, others]
        place = Place(self.end, update.values.size, self._ends(update.positions), self._number)
        for part in parts:
            self._write(part)
        return place

    def _ends(self, positions: Positions | None) -> NDArray[np.int32] | None:
        return None if positions is None else first_at(positions, self._bounds).astype(np.int32)

    def _write(self, part: NDArray[Any]) -> None:
        content = part.data.cast("B") if part.size else memoryview(b"")
        while content:
            written = os.pwrite(self.handle, content, self.end)
            self.end += written
            content = content[written:]

    def read(self, place: Place, first: int, last: int) -> Listed:
        """The entries of the blocks from `first` up to `last`, which is not included."""
        if place.ends is None:
            start, stop = (min(number * self.block, place.entries) for number in (first, last))
            return Listed(None, self._read(place.offset + WORD_BYTES * start, stop - start, "<f4"))
        start, stop = int(place.ends[first]), int(place.ends[last])
        values_at = place.offset + WORD_BYTES * (place.entries + start)
        positions = self._read(place.offset + WORD_BYTES * start, stop - start, "<u4")
        return Listed(positions, self._read(values_at, stop - start, "<f4"))

    def read_others(self, place: Place) -> FloatArray:
        """The other tensors of an update, without frozen ones."""
        words = place.entries * (1 if place.ends is None else 2)
        return self._read(place.offset + WORD_BYTES * words, self._others, "<f4")

    def _read(self, offset: int, count: int, dtype: str) -> NDArray[Any]:
        buffer = np.empty(count, dtype=dtype)
        left = buffer.data.cast("B") if count else memoryview(b"")
        while left:
            read = os.preadv(self.handle, [left], offset)
            if read == 0:
                raise OSError("the file of a round's updates is shorter than what was written to it")
            left, offset = left[read:], offset + read
        return buffer


@dataclass(frozen=True)
class Member:
    """One update of the round, and what it counts for."""

    place: Place
    weight: float
    scales: Mapping[str, float] = field(default_factory=dict)
    """Factor by tensor to scale its change with; omits tensors that are not clipped."""


class StretchWorkers(Protocol):
    """Processes that can read a round's files. What they compute does not depend on how many there are."""

    def means(
        self, updates: RoundEntries, stretches: Sequence[tuple[int, int]], *, total: float, senders_only: bool
    ) -> Iterator[tuple[int, FloatArray]]:
        """The start and the mean of each stretch of the weights, in order."""

    def combinations(
        self, updates: RoundEntries, stretches: Sequence[tuple[int, int]], config: AggregationConfig
    ) -> Iterator[tuple[int, FloatArray]]:
        """The start of each stretch of the weights and what a rule that looks at single entries makes of it."""

    def comparisons(
        self, updates: RoundEntries, stretches: Sequence[tuple[int, int]], peers: Sequence[int]
    ) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """What each of these stretches adds to the products and to the squares of devices, in order."""

    def squares_of_unit_sums(
        self, updates: RoundEntries, stretches: Sequence[tuple[int, int]], inverse: NDArray[np.float64]
    ) -> Iterator[NDArray[np.float64]]:
        """What each stretch adds to the squares of the sums of unit vectors, by weight, in order."""


@dataclass(frozen=True)
class RoundEntries:
    """The updates of a round in device order, weighed and clipped."""

    base: RoundBase
    files: Sequence[EntryFile]
    members: Sequence[Member]
    workers: StretchWorkers | None = None
    """Other processes that share the work on stretches."""

    @property
    def blocks(self) -> int:
        """How many blocks the weights have."""
        return self.files[0].blocks

    @property
    def block(self) -> int:
        """Entries per block."""
        return self.files[0].block

    def size(self, first: int, last: int) -> int:
        """How many entries the blocks from `first` up to `last` have."""
        return min(last * self.block, self.base.layout.weight_entries) - first * self.block

    @property
    def weights(self) -> NDArray[np.float64]:
        return np.array([member.weight for member in self.members], dtype=np.float64)

    def only(self, chosen: Collection[int]) -> RoundEntries:
        """Some of the updates."""
        return replace(self, members=[self.members[place] for place in chosen])

    def listed(self, first: int, last: int) -> Iterator[tuple[float, Listed]]:
        """The weight and the entries of every update, from block `first` up to block `last`, which is not included."""
        for member in self.members:
            yield member.weight, self.entries(member, first, last)

    def entries(self, member: Member, first: int, last: int) -> Listed:
        """The entries of one update in these blocks."""
        found = self.files[member.place.file].read(member.place, first, last)
        return self._clipped(found, member.scales, first * self.block) if member.scales else found

    def others(self, member: Member) -> FloatArray:
        """The other tensors of one update, without frozen ones."""
        values, base = self.files[member.place.file].read_others(member.place), self.base
        clipped = [name for name in base.layout.others if name in member.scales]
        if not clipped:
            return values
        whole = base.flat.others.copy()
        whole[self.moving] = values
        for name in clipped:
            place = base.layout.places[name]
            whole[place] = _scaled(whole[place], base.flat.others[place], member.scales[name], keep_zeros=False)
        return whole[self.moving]

    @property
    def moving(self) -> NDArray[np.bool_]:
        """Which entries of the other tensors are not frozen."""
        return self.files[0].moving

    def _clipped(self, found: Listed, scales: Mapping[str, float], start: int) -> Listed:
        base, layout = self.base, self.base.layout
        moved, keep_zeros = found.values.copy(), base.zeros_are_pruned
        for name in layout.weights:
            if name not in scales:
                continue
            place = layout.places[name]
            if found.positions is None:
                part = slice(max(0, place.start - start), max(0, place.stop - start))
                near = base.flat.weights[start + part.start : min(start + part.stop, start + moved.size)]
            else:
                part = slice(*np.searchsorted(found.positions, (place.start, place.stop)))
                near = base.flat.weights[found.positions[part]]
            moved[part] = _scaled(moved[part], near, scales[name], keep_zeros=keep_zeros)
        return Listed(found.positions, moved)


def _moving_of(base: RoundBase) -> NDArray[np.bool_]:
    """Which entries of the other tensors are not frozen."""
    moving = np.ones(base.layout.other_entries, dtype=np.bool_)
    for name in base.manifest.frozen:
        if name in base.layout.others:
            moving[base.layout.places[name]] = False
    return moving


def _scaled(values: FloatArray, near: FloatArray, scale: float, *, keep_zeros: bool) -> FloatArray:
    # Use float64: the difference of values near float32's limit would overflow.
    before = near.astype(np.float64)
    found = before + scale * (values - before)
    if keep_zeros:
        found[values == 0] = 0.0
    return found.astype(np.float32)
