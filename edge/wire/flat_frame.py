"""Frames as flat arrays of the entries that they keep: the work of decoding follows the non-zeros. No I/O.

    base = FlatBase.of(layout, state)                    # once per round
    header, update = decode_flat(frame, layout, base)    # once per update, with the checks of decode_frame

decode_frame makes every tensor dense. A coordinator that takes thousands of updates of one model needs the entries
alone, and all of them refer to the same base: its non-zeros and their order are found once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.tensors import FloatArray, MadeOnDemand, Tensors
from sparsyedge.edge.wire import native_codec as native
from sparsyedge.edge.wire.base_check import base_check
from sparsyedge.edge.wire.codecs import CODECS, LOSSLESS
from sparsyedge.edge.wire.envelope import (
    FrameHeader,
    Mask,
    Other,
    SectionReader,
    Weight,
    check_tensors,
    read_header,
    sections,
)
from sparsyedge.edge.wire.flat_layout import FlatLayout
from sparsyedge.edge.wire.frame import decode_lazily
from sparsyedge.edge.wire.native_codec import Bits, Bytes, Coding, Positions, Sparse
from sparsyedge.edge.wire.sparse_tensor import NESTED_LIMIT, bits_of

__all__ = ["FlatBase", "FlatUpdate", "FoundOfBase", "decode_flat", "flatten"]

PIECE_BYTES = 1 << 16
WHOLE_BYTES = 3 << 20
"""Sections up to this size are decompressed at once, which saves copies; larger ones a piece at a time."""


@dataclass(frozen=True)
class FoundOfBase:
    """What decoding an update came upon in its base: who measures the update need not look again."""

    base: FlatBase
    near: FloatArray | None
    """The base's entries where the update has its own; None if decoding did not need all of them."""
    dropped: Mapping[int, float]
    """By weight, the sum of squares of the base's entries that the update does not keep, where it was found."""


@dataclass(frozen=True)
class FlatUpdate:
    """The entries of an update; every other entry of a weight is zero."""

    positions: Positions | None
    """Of the kept entries among all weights, increasing; None if all are kept."""
    values: FloatArray
    others: FloatArray
    """The tensors that are not pruned, whole."""
    entries: int
    """How many values travelled."""
    found: FoundOfBase | None = None
    """What decoding has found of the base; None if there was none."""

    def tensors(self, layout: FlatLayout) -> Tensors:
        """The update as a state that makes each tensor dense when asked."""
        return MadeOnDemand((*layout.weights, *layout.others), lambda name: self._dense(layout, name))

    def _dense(self, layout: FlatLayout, name: str) -> FloatArray:
        place, shape = layout.places[name], layout.shapes[name]
        if name not in layout.weights:
            return self.others[place].reshape(shape)
        if self.positions is None:
            return self.values[place].reshape(shape)
        first, last = np.searchsorted(self.positions, (place.start, place.stop))
        dense = np.zeros(place.stop - place.start, dtype=np.float32)
        dense[self.positions[first:last] - np.uint32(place.start)] = self.values[first:last]
        return dense.reshape(shape)


class FlatBase:
    """A model that many updates start from. It must not change while they are decoded."""

    def __init__(self, layout: FlatLayout, weights: FloatArray, others: FloatArray) -> None:
        self.layout = layout
        self.weights = weights
        self.others = others
        self._held: dict[int, int] = {}
        self._nonzeros: dict[int, Sparse] = {}
        self._orders: dict[int, Positions] = {}

    @classmethod
    def of(cls, layout: FlatLayout, state: Tensors) -> FlatBase:
        """The base with this state; shares its memory if `layout` made it."""
        return cls(layout, layout.flat(state, layout.weights), layout.flat(state, layout.others))

    def held(self, index: int) -> int:
        """How many entries of a weight are not zero."""
        if index not in self._held:
            self._held[index] = native.count_nonzero(self._bits(index))
        return self._held[index]

    def nonzeros(self, index: int) -> Sparse:
        """The non-zeros of a weight, at positions among all weights."""
        if index not in self._nonzeros:
            found = native.nonzero(self._bits(index), self.held(index))
            assert found is not None
            start = np.uint32(self.layout.weight_starts[index])
            self._nonzeros[index] = Sparse(found.positions + start, found.values)
        return self._nonzeros[index]

    def order(self, index: int) -> Positions:
        """The non-zeros of a weight by magnitude, as a frame ranks them."""
        if index not in self._orders:
            self._orders[index] = native.magnitude_order(self.nonzeros(index).values)
        return self._orders[index]

    def _bits(self, index: int) -> Bits:
        start, stop = self.layout.weight_starts[index : index + 2]
        return bits_of(self.weights[start:stop])


def decode_flat(
    frame: bytes, layout: FlatLayout, base: FlatBase | None = None, *, digest: bytes | None = None
) -> tuple[FrameHeader, FlatUpdate]:
    """The header and the entries of a frame; raises FrameError wherever decode_frame would.

    A frame that is a difference needs the model `header.base_id` as its base; other frames ignore the base. `digest` is
    the one that the frame should end in, if the caller knows it.
    """
    header = read_header(frame, digest=digest)
    check_tensors(header, layout.shapes)
    if not _is_in_order(header, layout):
        # No device of ours sends this; it is still a frame.
        state = None if base is None else layout.views(base.weights, base.others)
        return header, flatten(decode_lazily(frame, layout.shapes, state), layout, entries=header.entries)
    if base is None and header.needs_base:
        raise FrameError(
            f"frame is a difference to model {header.base_id[:12]!r}, which is not at hand; ask for a full frame"
        )
    mask_section, weight_section, other_section = sections(frame, header)
    masks = _masks(header.weights, np.frombuffer(mask_section, dtype=np.uint8), layout, base)
    if base_check(_used(header, masks, layout, base)) != header.base_check:
        raise FrameError(f"frame is a difference to model {header.base_id[:12]!r}; the base at hand is another model")
    values = _words(weight_section, masks.starts[-1], len(header.weights), CODECS[header.codec].word)
    others = _words(other_section, layout.other_entries, len(header.others), CODECS[LOSSLESS].word)
    _restore_weights(values, header, masks)
    if base is not None:
        _restore_others(others, header.others, bits_of(base.others), layout)
    positions = None if masks.starts[-1] == layout.weight_entries else masks.positions
    found = None if base is None else _found(header, masks, base)
    update = FlatUpdate(positions, values.view(np.float32), others.view(np.float32), header.entries, found)
    return header, update


def flatten(state: Tensors, layout: FlatLayout, *, entries: int = 0) -> FlatUpdate:
    """A state as flat entries, tensor by tensor."""
    positions, values = [], []
    for name in layout.weights:
        bits = bits_of(state[name])
        found = native.nonzero(bits, native.count_nonzero(bits))
        assert found is not None
        positions.append(found.positions + np.uint32(layout.places[name].start))
        values.append(found.values)
    others = [np.asarray(state[name], dtype=np.float32).reshape(-1) for name in layout.others]
    nothing = np.empty(0, dtype=np.uint32)
    return FlatUpdate(
        np.concatenate(positions or [nothing]),
        np.concatenate(values or [nothing]).view(np.float32),
        np.concatenate(others or [nothing.view(np.float32)]),
        entries,
    )


def _is_in_order(header: FrameHeader, layout: FlatLayout) -> bool:
    weights, others = (tuple(tensor.name for tensor in part) for part in (header.weights, header.others))
    return weights == layout.weights and others == layout.others


# ---- masks -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _FlatMasks:
    """What a frame keeps of all weights, side by side."""

    starts: list[int]
    """Where each weight's entries start, and the end of the last."""
    positions: Positions | None
    """Of the entries among all weights; None if no mask leaves any out."""
    near: Bits | None
    """The base's entries there; without meaning in a weight that stands alone, and None if all of them do."""
    dropped: dict[int, float] = field(default_factory=dict)
    """By weight, the sum of squares of the base's other entries, where it was found."""

    def part(self, index: int) -> slice:
        """The entries of one weight."""
        return slice(self.starts[index], self.starts[index + 1])


def _masks(weights: Sequence[Weight], codes: Bytes, layout: FlatLayout, base: FlatBase | None) -> _FlatMasks:
    starts = [0, *itertools.accumulate(weight.kept for weight in weights)]
    has_base = base is not None and any(weight.difference for weight in weights)
    if all(weight.mask is Mask.ALL for weight in weights):
        masks = _FlatMasks(starts, None, bits_of(base.weights) if base is not None and has_base else None)
    else:
        # Both stay untouched, and so take no memory, until codes were found to list that many entries.
        positions = np.empty(starts[-1], dtype=np.uint32)
        masks = _FlatMasks(starts, positions, np.empty_like(positions) if has_base else None)
        for index, weight in enumerate(weights):
            try:
                codes = codes[_put_mask(index, weight, codes, masks, layout, base) :]
            except FrameError as error:
                raise FrameError(f"mask of {weight.name}: {error}") from error
    if codes.size:
        raise FrameError(f"{codes.size} bytes are left after the last mask")
    return masks


def _put_mask(
    index: int, weight: Weight, codes: Bytes, masks: _FlatMasks, layout: FlatLayout, base: FlatBase | None
) -> int:
    """Put one weight's entries in their place; returns the number of bytes read."""
    part = masks.part(index)
    assert masks.positions is not None
    into = masks.positions[part]
    if weight.mask is Mask.DROPPED:
        assert base is not None
        assert masks.near is not None
        masks.dropped[index], used = _put_remaining(index, weight, codes, base, Sparse(into, masks.near[part]))
        return used
    start, size, used = int(layout.weight_starts[index]), weight.size, 0
    if weight.mask is Mask.ALL:
        into[:] = np.arange(start, start + size, dtype=np.uint32)
    elif weight.mask is Mask.KEPT:
        _, used = native.rice_decode(
            codes, parameter=weight.parameter, size=size, count=weight.kept, start=start, into=into
        )
    else:
        zeros, used = native.rice_decode(codes, parameter=weight.parameter, size=size, count=size - weight.kept)
        native.complement(zeros, size, start=start, into=into)
        if base is not None:
            masks.dropped[index] = native.square_at(base.weights[start : start + size], zeros)
    if base is not None and weight.difference:
        assert masks.near is not None
        native.gather(bits_of(base.weights), into, into=masks.near[part])
    return used


def _put_remaining(index: int, weight: Weight, codes: Bytes, base: FlatBase, into: Sparse) -> tuple[float, int]:
    held = base.held(index)
    if not weight.kept <= held <= NESTED_LIMIT * weight.kept:
        raise FrameError(f"it keeps {weight.kept} entries of a base that has {held}, too different a count")
    ranks, used = native.rice_decode(codes, parameter=weight.parameter, size=held, count=held - weight.kept)
    return native.remaining(base.nonzeros(index), base.order(index), ranks, into=into), used


def _used(header: FrameHeader, masks: _FlatMasks, layout: FlatLayout, base: FlatBase | None) -> Iterator[Bits]:
    """The base data that a frame builds on, as its sender hashed it: positions in their tensor, and entries."""
    for index, weight in enumerate(header.weights):
        if base is not None and weight.difference:
            assert masks.near is not None
            if weight.mask is not Mask.ALL:
                assert masks.positions is not None
                yield masks.positions[masks.part(index)] - np.uint32(layout.weight_starts[index])
            yield masks.near[masks.part(index)]
    for other in header.others:
        if other.difference:
            assert base is not None
            yield bits_of(base.others[layout.places[other.name]])


def _found(header: FrameHeader, masks: _FlatMasks, base: FlatBase) -> FoundOfBase:
    is_complete = masks.near is not None and all(weight.difference for weight in header.weights)
    near = masks.near.view(np.float32) if masks.near is not None and is_complete else None
    return FoundOfBase(base, near, masks.dropped)


# ---- values ----------------------------------------------------------------------------------------------------------


def _words(section: memoryview, count: int, tensors: int, word: np.dtype[Any]) -> Bits:
    """The words of a value section: all lowest bytes come first, then all second bytes, and so on."""
    width = word.itemsize
    stream = SectionReader(section, width * count, planes=width * tensors)
    if width * count <= WHOLE_BYTES:
        planes, words = np.empty(width * count, dtype=np.uint8), np.empty(count, dtype=np.uint32)
        stream.read(planes)
        native.join_planes(planes, words, width)
        return words
    words = np.zeros(count, dtype=np.uint32)
    buffer = np.empty(PIECE_BYTES, dtype=np.uint8)
    for byte in range(width):
        for start in range(0, count, PIECE_BYTES):
            part = words[start : start + PIECE_BYTES]
            piece = buffer[: part.size]
            stream.read(piece)
            native.put_plane(piece, part, byte)
    return words


def _restore_weights(words: Bits, header: FrameHeader, masks: _FlatMasks) -> None:
    """Turn words into values, in place: all weights at once if they are coded alike."""
    coding = CODECS[header.codec].coding
    alike = coding is not Coding.INT8 and len({weight.difference for weight in header.weights}) == 1
    if alike:
        _restore(words, masks.near, coding)
        return
    for index, weight in enumerate(header.weights):
        part = masks.part(index)
        near = masks.near[part] if masks.near is not None and weight.difference else None
        _restore(words[part], near, coding, weight.scale)


def _restore_others(words: Bits, others: Sequence[Other], base: Bits, layout: FlatLayout) -> None:
    if all(other.difference for other in others):
        _restore(words, base, CODECS[LOSSLESS].coding)
        return
    for other in others:
        if other.difference:
            place = layout.places[other.name]
            _restore(words[place], base[place], CODECS[LOSSLESS].coding)


def _restore(words: Bits, near: Bits | None, coding: Coding, scale: float = 0.0) -> None:
    native.expand(words, count=words.size, mask=None, base=near, coding=coding, scale=scale)
