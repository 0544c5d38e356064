"""Frames as flat arrays of the entries that they keep: the work of decoding follows the non-zeros. No I/O.

    base = FlatBase.of(layout, state)                    # once per round
    header, update = decode_flat(frame, layout, base)    # once per update, with the checks of decode_frame

decode_frame makes every tensor dense. A coordinator that takes thousands of updates of one model needs the entries
alone, and all of them refer to the same base: its non-zeros and their order are found once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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

__all__ = ["FlatBase", "FlatUpdate", "decode_flat", "flatten"]

PIECE_BYTES = 1 << 16


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


def decode_flat(frame: bytes, layout: FlatLayout, base: FlatBase | None = None) -> tuple[FrameHeader, FlatUpdate]:
    """The header and the entries of a frame; raises FrameError wherever decode_frame would.

    A frame that is a difference needs the model `header.base_id` as its base; other frames ignore the base.
    """
    header = read_header(frame)
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
    masks = list(_masks(header.weights, np.frombuffer(mask_section, dtype=np.uint8), layout, base))
    if base_check(_used(header, masks, layout, base)) != header.base_check:
        raise FrameError(f"frame is a difference to model {header.base_id[:12]!r}; the base at hand is another model")
    counts = [weight.kept for weight in header.weights]
    values = _words(weight_section, sum(counts), len(counts), CODECS[header.codec].word)
    others = _words(other_section, layout.other_entries, len(header.others), CODECS[LOSSLESS].word)
    _restore_weights(values, header, masks)
    if base is not None:
        _restore_others(others, header.others, bits_of(base.others), layout)
    is_whole = sum(counts) == layout.weight_entries
    positions = None if is_whole else np.concatenate([mask.positions for mask in masks])
    return header, FlatUpdate(positions, values.view(np.float32), others.view(np.float32), header.entries)


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
class _FlatMask:
    positions: Positions
    """Among all weights."""
    near: Bits | None
    """The base's entries there; None if the weight stands alone."""


def _masks(weights: Sequence[Weight], codes: Bytes, layout: FlatLayout, base: FlatBase | None) -> Iterator[_FlatMask]:
    for index, weight in enumerate(weights):
        try:
            mask, used = _mask(index, weight, codes, layout, base)
        except FrameError as error:
            raise FrameError(f"mask of {weight.name}: {error}") from error
        codes = codes[used:]
        yield mask
    if codes.size:
        raise FrameError(f"{codes.size} bytes are left after the last mask")


def _mask(index: int, weight: Weight, codes: Bytes, layout: FlatLayout, base: FlatBase | None) -> tuple[_FlatMask, int]:
    if weight.mask is Mask.DROPPED:
        assert base is not None
        return _mask_of_dropped(index, weight, codes, base)
    start, size, used = int(layout.weight_starts[index]), weight.size, 0
    if weight.mask is Mask.ALL:
        positions = np.arange(start, start + size, dtype=np.uint32)
    else:
        listed = weight.kept if weight.mask is Mask.KEPT else size - weight.kept
        positions, used = native.rice_decode(codes, parameter=weight.parameter, size=size, count=listed)
        if weight.mask is Mask.ZEROS:
            positions = native.complement(positions, size)
        positions += np.uint32(start)
    near = None if base is None or not weight.difference else native.gather(bits_of(base.weights), positions)
    return _FlatMask(positions, near), used


def _mask_of_dropped(index: int, weight: Weight, codes: Bytes, base: FlatBase) -> tuple[_FlatMask, int]:
    held = base.held(index)
    if not weight.kept <= held <= NESTED_LIMIT * weight.kept:
        raise FrameError(f"it keeps {weight.kept} entries of a base that has {held}, too different a count")
    ranks, used = native.rice_decode(codes, parameter=weight.parameter, size=held, count=held - weight.kept)
    stays = np.ones(held, dtype=np.bool_)
    stays[base.order(index)[ranks]] = False
    nonzeros = base.nonzeros(index)
    return _FlatMask(nonzeros.positions[stays], nonzeros.values[stays]), used


def _used(header: FrameHeader, masks: Sequence[_FlatMask], layout: FlatLayout, base: FlatBase | None) -> Iterator[Bits]:
    """The base data that a frame builds on, as its sender hashed it: positions in their tensor, and entries."""
    for index, (weight, mask) in enumerate(zip(header.weights, masks, strict=True)):
        if mask.near is not None:
            if weight.mask is not Mask.ALL:
                yield mask.positions - np.uint32(layout.weight_starts[index])
            yield mask.near
    for other in header.others:
        if other.difference:
            assert base is not None
            yield bits_of(base.others[layout.places[other.name]])


# ---- values ----------------------------------------------------------------------------------------------------------


def _words(section: memoryview, count: int, tensors: int, word: np.dtype[Any]) -> Bits:
    """The words of a value section: all lowest bytes come first, then all second bytes, and so on."""
    stream = SectionReader(section, word.itemsize * count, planes=word.itemsize * tensors)
    words = np.zeros(count, dtype=np.uint32)
    buffer = np.empty(PIECE_BYTES, dtype=np.uint8)
    for byte in range(word.itemsize):
        for start in range(0, count, PIECE_BYTES):
            part = words[start : start + PIECE_BYTES]
            piece = buffer[: part.size]
            stream.read(piece)
            native.put_plane(piece, part, byte)
    return words


def _restore_weights(words: Bits, header: FrameHeader, masks: Sequence[_FlatMask]) -> None:
    """Turn words into values, in place: all weights at once if they are coded alike."""
    coding = CODECS[header.codec].coding
    alike = coding is not Coding.INT8 and len({weight.difference for weight in header.weights}) == 1
    if alike:
        near = [mask.near for mask in masks if mask.near is not None]
        _restore(words, np.concatenate(near) if near else None, coding)
        return
    start = 0
    for weight, mask in zip(header.weights, masks, strict=True):
        _restore(words[start : start + weight.kept], mask.near, coding, weight.scale)
        start += weight.kept


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
