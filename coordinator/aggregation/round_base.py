"""The model that a round starts from, and everything about it that measuring an update needs, found once per round.

An update has a small part of the model's entries. What concerns the others follows from the base alone (its norms, its
non-zeros), so the work per update follows the entries that it keeps. Numpy and the native codec, no I/O.
"""

from __future__ import annotations

import itertools
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.tensors import FloatArray, Tensors
from sparsyedge.edge.wire import native_codec as native
from sparsyedge.edge.wire.flat_frame import FlatBase, FlatUpdate, FoundOfBase
from sparsyedge.edge.wire.flat_layout import FlatLayout, first_at
from sparsyedge.edge.wire.sparse_tensor import bits_of

__all__ = ["Products", "RoundBase", "layout_of"]

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]

PIECE = 1 << 16
"""Entries whose squares are summed at a time; the bits of a norm depend on it."""


def layout_of(manifest: Manifest) -> FlatLayout:
    """The flat layout of a model."""
    return FlatLayout.of(manifest.shapes, manifest.prunable)


class Products:
    """Sums over each tensor of an update b and its base a; weights come first, then the other tensors."""

    def __init__(self, sums: Numbers, base_squares: Numbers, dropped: Numbers) -> None:
        self.difference = sums[:, 0] + dropped
        """(a - b)², entries that the update lacks included."""
        self.squares = sums[:, 1]
        self.base_squares = base_squares
        self.listed_squares = sums[:, 2]
        """Of the base's entries where the update lists its own."""
        self.mixed = sums[:, 3]
        self.nonzeros = sums[:, 4]
        """Of the update."""
        self.common_nonzeros = sums[:, 6]
        """Entries where neither is zero."""


class RoundBase:
    """A model with its norms and its non-zeros. Its tensors must not change."""

    def __init__(self, manifest: Manifest, layout: FlatLayout, state: Tensors) -> None:
        self.manifest = manifest
        self.layout = layout
        self.flat = FlatBase.of(layout, state)
        self.zeros_are_pruned = manifest.method.uplink == "weights"
        """Whether a zero of an update means that the device pruned the entry."""

    @cached_property
    def trained(self) -> Flags:
        """Which tensors steps change, in the order of `Products`."""
        trained = {parameter.name for parameter in self.manifest.parameters if parameter.trainable}
        return np.array([name in trained for name in (*self.layout.weights, *self.layout.others)])

    @cached_property
    def squares(self) -> Numbers:
        """The sum of squares of each tensor."""
        flat, layout = self.flat, self.layout
        sums = [
            native.products(values, values, starts)[0][:, 1]
            for values, starts in ((flat.weights, layout.weight_starts), (flat.others, layout.other_starts))
        ]
        return np.concatenate(sums)

    @cached_property
    def held(self) -> NDArray[np.int64]:
        """How many entries of each weight are not zero."""
        return np.array([self.flat.held(index) for index in range(len(self.layout.weights))], dtype=np.int64)

    @cached_property
    def pieces(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Where the pieces of all weights start, with the end of the last, and the weight of each."""
        return _pieces(self.layout.weight_starts)

    @cached_property
    def other_pieces(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The same for the other tensors."""
        return _pieces(self.layout.other_starts)

    def near(self, update: FlatUpdate) -> FloatArray:
        """The base's entries where the update has its own."""
        if update.positions is None:
            return self.flat.weights
        found = self._found(update)
        if found is not None and found.near is not None:
            return found.near
        return native.gather(bits_of(self.flat.weights), update.positions).view(np.float32)

    def _found(self, update: FlatUpdate) -> FoundOfBase | None:
        """What decoding the update found of this base; None if it was decoded against another."""
        return update.found if update.found is not None and update.found.base is self.flat else None

    def starts(self, update: FlatUpdate) -> NDArray[np.int64]:
        """Where each weight's entries start in the update."""
        if update.positions is None:
            return self.layout.weight_starts
        return self.layout.find(update.positions)

    def whole(self, update: FlatUpdate) -> FlatUpdate:
        """The update with its zeros, where zeros are values."""
        if self.zeros_are_pruned or update.positions is None:
            return update
        values = np.zeros(self.layout.weight_entries, dtype=np.float32)
        values[update.positions] = update.values
        return FlatUpdate(None, values, update.others, update.entries)

    def products(self, update: FlatUpdate, near: FloatArray | None = None) -> tuple[Products, bool]:
        """The sums of an update, and whether all its values are finite."""
        near = self.near(update) if near is None else near
        starts = self.starts(update)
        weights, weights_finite = native.products(update.values, near, starts)
        others, others_finite = native.products(update.others, self.flat.others, self.layout.other_starts)
        count = len(self.layout.weights)
        dropped = np.zeros(self.squares.size)
        if update.positions is not None:
            dropped[:count] = [self._dropped(index, weights[index], update, starts) for index in range(count)]
        sums = np.concatenate([weights, others])
        return Products(sums, self.squares, dropped), weights_finite and others_finite

    def _dropped(self, index: int, sums: Numbers, update: FlatUpdate, starts: NDArray[np.int64]) -> float:
        """The sum of squares of a weight's entries that the update does not keep."""
        held, common = int(self.held[index]), int(sums[5])
        if common == held:
            return 0.0
        if 2 * common < held:
            return max(0.0, float(self.squares[index] - sums[2]))
        # Little is missing, and the difference of two large sums would not be exact.
        found = self._found(update)
        if found is not None and index in found.dropped:
            return found.dropped[index]
        assert update.positions is not None
        kept = update.positions[starts[index] : starts[index + 1]]
        return native.missing_square(self.flat.nonzeros(index), kept)

    def changes(self, update: FlatUpdate, near: FloatArray, *, lists_zeros: bool) -> Numbers:
        """By tensor, the norm of the change to the entries that the update keeps; some of those listed may be zero."""
        positions, values = update.positions, update.values
        if self.zeros_are_pruned and lists_zeros:
            kept = np.flatnonzero(values)
            positions = kept.astype(np.uint32) if positions is None else positions[kept]
            values, near = values[kept], near[kept]
        bounds, owners = self.pieces
        cuts = bounds if positions is None else first_at(positions, bounds)
        count = len(self.layout.weights)
        squares = np.zeros(count + len(self.layout.others))
        native.change_squares(values, near, cuts, owners, squares[:count])
        native.change_squares(update.others, self.flat.others, *self.other_pieces, squares[count:])
        return np.sqrt(squares, out=squares)


def _pieces(starts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Where the pieces of all tensors start, with the end of the last, and the tensor of each."""
    found: list[int] = []
    owners: list[int] = []
    for index, (first, last) in enumerate(itertools.pairwise(starts.tolist())):
        pieces = range(first, last, PIECE)
        found += pieces
        owners += [index] * len(pieces)
    return np.array([*found, starts[-1]], dtype=np.int64), np.array(owners, dtype=np.int32)
