"""Frames: a model's state as bytes, without its zeros and without what the receiver already has. No I/O.

    encoded = encode_frame(state, run=..., round_number=..., base_id=..., base=..., codec="bf16", prunable=...)
    frame = decode_frame(encoded.frame, shapes, base=...)       # frame.state is bit for bit encoded.decoded

A weight (a pruned tensor) travels as a mask and its kept values; every other tensor travels whole. The mask is
explicit: a value that rounds to zero keeps its place. With a base, a model that both sides hold, a mask lists the
dropped non-zeros of the base, and values are differences. The decoder checks every claim of a header against the
receiver's own table of shapes before it allocates memory. It allocates the state, one bit per entry and, for a mask
over a base, at most two bytes per entry; it reads values straight into place. docs/reference/frame.md has the format
byte by byte.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.tensors import FloatArray, State, Tensors
from sparsyedge.edge.wire import native_codec as native
from sparsyedge.edge.wire.base_check import base_check
from sparsyedge.edge.wire.codecs import CODECS, LOSSLESS, Codec
from sparsyedge.edge.wire.envelope import (
    FrameHeader,
    Other,
    SectionReader,
    Weight,
    check_tensors,
    read_header,
    seal,
    sections,
)
from sparsyedge.edge.wire.flat_layout import kind_and_name
from sparsyedge.edge.wire.native_codec import Bits, Bytes, MaskBits
from sparsyedge.edge.wire.sparse_tensor import CodedWeight, Lost, bits_of, decode_mask, encode_weight

__all__ = [
    "Encoded",
    "Frame",
    "FrameHeader",
    "LazyFrame",
    "decode_frame",
    "decode_lazily",
    "encode_frame",
    "frame_of",
    "read_header",
]

PIECE_BYTES = 1 << 16
AT_ONCE_BYTES = 1 << 18
"""A model has a hundred tensors, most of them tiny: a call for each plane of each takes longer than all their bytes."""

# Trained values repeat nothing worth a back-reference: zstd's matches in them are chance, and cost more than they
# save. A table of 64 places finds few of those but still the long runs of zeros; the entropy code does the rest.
ZSTD = zstandard.ZstdCompressionParameters.from_level(1, hash_log=6)


@dataclass(frozen=True)
class Encoded:
    """A frame, and the receiver's result."""

    frame: bytes
    sent: Tensors
    base: Tensors | None
    is_lossy: bool

    @cached_property
    def decoded(self) -> Tensors:
        """Bit for bit the result of decode_frame; the very tensors that were encoded, if nothing is lost.

        Each access to a tensor may make it anew. Do not change the base before the last one.
        """
        return decode_lazily(self.frame, read_header(self.frame).shapes, self.base) if self.is_lossy else self.sent


@dataclass(frozen=True)
class Frame:
    """A decoded frame."""

    header: FrameHeader
    state: State


def encode_frame(
    state: Mapping[str, FloatArray],
    *,
    run: str,
    round_number: int,
    base_id: str,
    base: Mapping[str, FloatArray] | None = None,
    codec: Codec = LOSSLESS,
    prunable: Collection[str],
    lost: Lost | None = None,
) -> Encoded:
    """Encode the state as one frame, and decode it as the receiver will if that is asked for; see frame_of."""
    frame = frame_of(
        state, run=run, round_number=round_number, base_id=base_id, base=base, codec=codec, prunable=prunable, lost=lost
    )
    return Encoded(frame, state, base, is_lossy=CODECS[codec].lossy)


def frame_of(
    state: Mapping[str, FloatArray],
    *,
    run: str,
    round_number: int,
    base_id: str,
    base: Mapping[str, FloatArray] | None = None,
    codec: Codec = LOSSLESS,
    prunable: Collection[str],
    lost: Lost | None = None,
) -> bytes:
    """Encode the state as one frame; the same arguments always give the same bytes.

    Reads every tensor once and keeps only the part that travels. A tensor that the base lacks travels without a base.
    Tells `lost` what the receiver will lack of each weight, in the order of their names. Raises FrameError if the codec
    cannot carry the values.
    """
    held = base or {}
    names = set(state)
    weights = [_encode_weight(name, state[name], held, codec, lost) for name in sorted(names & set(prunable))]
    others = [_encode_other(name, state[name], held) for name in sorted(names - set(prunable), key=kind_and_name)]
    masks = b"".join(weight.codes.tobytes() for weight in weights)
    weight_section = _compress([weight.words for weight in weights])
    other_section = _compress([np.concatenate(words) for words in _by_kind(others)])
    header = FrameHeader(
        run=run,
        round=round_number,
        base_id=base_id,
        base_check=base_check(_used_in([*weights, *others])),
        codec=codec,
        weights=tuple(weight.entry for weight in weights),
        others=tuple(other.entry for other in others),
        mask_bytes=len(masks),
        weight_bytes=len(weight_section),
        other_bytes=len(other_section),
    )
    return seal(header, masks, weight_section, other_section)


def decode_frame(
    frame: bytes,
    shapes: Mapping[str, tuple[int, ...]],
    base: Mapping[str, FloatArray] | None = None,
    *,
    into: State | None = None,
) -> Frame:
    """The state in a frame, which must hold exactly the tensors of `shapes`; raises FrameError otherwise.

    A frame that is a difference needs the model `header.base_id` as its base; other frames ignore the base. The
    tensors are new, or those of `into`, overwritten.
    """
    opened = _open(frame, shapes, base)
    header, held = opened.header, opened.held
    state = {name: np.zeros(shape, dtype=np.float32) for name, shape in header.shapes.items()} if into is None else into
    for overwritten in (into or {}).values():
        overwritten.fill(0)
    opened.fill({tensor.name: bits_of(state[tensor.name]) for tensor in header.tensors})
    for tensor in header.tensors:
        _expand(bits_of(state[tensor.name]), tensor, opened.masks[tensor.name], held.get(tensor.name), header.codec)
    return Frame(header, state)


def decode_lazily(
    frame: bytes, shapes: Mapping[str, tuple[int, ...]], base: Mapping[str, FloatArray] | None = None
) -> LazyFrame:
    """Like decode_frame, with the same checks, but without memory for zeros. Do not change the base meanwhile."""
    opened = _open(frame, shapes, base)
    words = {tensor.name: np.zeros(_kept(tensor), dtype=np.uint32) for tensor in opened.header.tensors}
    opened.fill(words)
    return LazyFrame(opened, words)


class LazyFrame(Mapping[str, FloatArray]):
    """A decoded frame that holds only the kept values; each access to a tensor makes it dense anew.

    For code that walks through many updates tensor by tensor: memory grows with the non-zeros, not with the model.
    """

    def __init__(self, opened: _Opened, words: dict[str, Bits]) -> None:
        self.header = opened.header
        self._opened = opened
        self._words = words
        self._tensors = {tensor.name: tensor for tensor in opened.header.tensors}

    def __getitem__(self, name: str) -> FloatArray:
        tensor, opened = self._tensors[name], self._opened
        dense = np.zeros(tensor.shape, dtype=np.float32)
        _tail(dense, _kept(tensor))[:] = self._words[name]
        _expand(bits_of(dense), tensor, opened.masks[name], opened.held.get(name), self.header.codec)
        return dense

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


@dataclass(frozen=True)
class _Opened:
    """A checked frame; its values are still in their sections."""

    header: FrameHeader
    masks: dict[str, MaskBits | None]
    held: dict[str, Bits]
    weight_section: memoryview
    other_section: memoryview

    def fill(self, places: Mapping[str, Bits]) -> None:
        """Put the words of every tensor at the end of its buffer."""
        header = self.header
        weights = [_last(places[weight.name], weight.kept) for weight in header.weights]
        others = [_last(places[other.name], other.size) for other in header.others]
        _fill(self.weight_section, weights, CODECS[header.codec].word)
        _fill(self.other_section, others, CODECS[LOSSLESS].word)


def _open(frame: bytes, shapes: Mapping[str, tuple[int, ...]], base: Mapping[str, FloatArray] | None) -> _Opened:
    header = read_header(frame)
    check_tensors(header, shapes)
    mask_section, weight_section, other_section = sections(frame, header)
    held = _base_bits(header, base)
    kept = [*_decode_masks(header.weights, mask_section, held), *[None] * len(header.others)]
    used = (
        piece
        for tensor, mask in zip(header.tensors, kept, strict=True)
        if tensor.name in held
        for piece in _used_of(held[tensor.name], mask)
    )
    if base_check(used) != header.base_check:
        raise FrameError(f"frame is a difference to model {header.base_id[:12]!r}; the base at hand is another model")
    masks = {tensor.name: mask for tensor, mask in zip(header.tensors, kept, strict=True)}
    return _Opened(header, masks, held, weight_section, other_section)


def _kept(tensor: Weight | Other) -> int:
    return tensor.kept if isinstance(tensor, Weight) else tensor.size


def _expand(bits: Bits, tensor: Weight | Other, mask: MaskBits | None, near: Bits | None, codec: Codec) -> None:
    """Turn a tensor's words into its values, in place."""
    if isinstance(tensor, Weight):
        coding = CODECS[codec].coding
        native.expand(bits, count=tensor.kept, mask=mask, base=near, coding=coding, scale=tensor.scale)
    elif near is not None:
        native.expand(bits, count=tensor.size, mask=None, base=near, coding=CODECS[LOSSLESS].coding)


# ---- the base --------------------------------------------------------------------------------------------------------


def _of_shape(base: Mapping[str, FloatArray], name: str, shape: tuple[int, ...]) -> FloatArray | None:
    tensor = base.get(name)
    if tensor is not None and tensor.shape != shape:
        raise FrameError(f"the base has {name} with shape {tensor.shape}, the model has {shape}")
    return tensor


def _base_bits(header: FrameHeader, base: Mapping[str, FloatArray] | None) -> dict[str, Bits]:
    """The tensors of the base that a frame builds on."""
    needed = [tensor for tensor in header.tensors if tensor.difference]
    if needed and base is None:
        raise FrameError(
            f"frame is a difference to model {header.base_id[:12]!r}, which is not at hand; ask for a full frame"
        )
    held: dict[str, Bits] = {}
    for tensor in needed:
        found = _of_shape(base or {}, tensor.name, tensor.shape)
        if found is None:
            raise FrameError(f"frame is a difference to model {header.base_id[:12]!r}; the base lacks {tensor.name}")
        held[tensor.name] = bits_of(found)
    return held


def _used_in(coded: Iterable[CodedWeight | _CodedOther]) -> Iterator[NDArray[np.uint32]]:
    """The base data that a sender uses: per tensor with a base, the positions (unless all) and the entries there."""
    for tensor in coded:
        if tensor.base is not None:
            if isinstance(tensor, CodedWeight) and tensor.positions is not None:
                yield tensor.positions
            yield tensor.base


def _used_of(base: Bits, mask: MaskBits | None) -> Iterator[NDArray[np.uint32]]:
    """The same for one tensor on the receiver's side, piece by piece."""
    if mask is None:
        yield base
        return
    # A weight that keeps nothing still builds on its base.
    yield base[:0]
    yield from native.mask_positions(mask, base.size)
    yield from native.mask_entries(mask, base)


# ---- tensors ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _CodedOther:
    entry: Other
    words: Bits
    base: Bits | None


def _encode_weight(
    name: str, tensor: FloatArray, held: Mapping[str, FloatArray], codec: Codec, lost: Lost | None
) -> CodedWeight:
    return encode_weight(name, np.asarray(tensor, dtype=np.float32), _of_shape(held, name, tensor.shape), codec, lost)


def _encode_other(name: str, tensor: FloatArray, held: Mapping[str, FloatArray]) -> _CodedOther:
    base = _of_shape(held, name, tensor.shape)
    bits = bits_of(tensor)
    if base is None:
        return _CodedOther(Other(name, tuple(tensor.shape), difference=False), bits, None)
    base_bits = bits_of(base)
    words = native.difference(bits, base_bits)
    return _CodedOther(Other(name, tuple(tensor.shape), difference=True), words, base_bits)


def _by_kind(others: Sequence[_CodedOther]) -> Iterator[list[Bits]]:
    for _, alike in itertools.groupby(others, key=lambda other: kind_and_name(other.entry.name)[0]):
        yield [other.words for other in alike]


def _decode_masks(
    weights: Sequence[Weight], section: memoryview, held: Mapping[str, Bits]
) -> Iterator[MaskBits | None]:
    """The mask of each weight."""
    codes = np.frombuffer(section, dtype=np.uint8)
    for weight in weights:
        try:
            mask, used = decode_mask(weight, codes, held.get(weight.name))
        except FrameError as error:
            raise FrameError(f"mask of {weight.name}: {error}") from error
        codes = codes[used:]
        yield mask
    if codes.size:
        raise FrameError(f"{codes.size} bytes are left after the last mask")


# ---- value sections --------------------------------------------------------------------------------------------------


def _compress(groups: Sequence[NDArray[Any]]) -> bytes:
    """Compress the words of all groups as byte planes; each plane of a group is a block with its own entropy code."""
    planes = [native.split_planes(words) for words in groups if words.size]
    if not planes:
        return b""
    stream = zstandard.ZstdCompressor(compression_params=ZSTD).compressobj(size=sum(plane.size for plane in planes))
    parts = []
    for byte in range(len(planes[0])):
        for plane in planes:
            parts += [stream.compress(plane[byte]), stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)]
    return b"".join((*parts, stream.flush()))


def _tail(tensor: FloatArray, count: int) -> Bits:
    """The last entries of a tensor: the decoder puts the words there before it expands them."""
    return _last(bits_of(tensor), count)


def _last(bits: Bits, count: int) -> Bits:
    return bits[bits.size - count :]


def _fill(section: memoryview, tensors: Sequence[Bits], word: np.dtype[Any]) -> None:
    """Read the words of a value section into place: all at once if they are few, else a piece of a plane at a time."""
    left = word.itemsize * sum(words.size for words in tensors)
    stream = SectionReader(section, left, planes=word.itemsize * len(tensors))
    if left <= AT_ONCE_BYTES:
        _fill_at_once(stream, tensors, np.empty((word.itemsize, left // word.itemsize), dtype=np.uint8))
        return
    buffer = np.empty(PIECE_BYTES, dtype=np.uint8)
    piece = buffer[:0]
    for byte, words in itertools.product(range(word.itemsize), tensors):
        start = 0
        while start < words.size:
            if piece.size == 0:
                piece = buffer[: min(PIECE_BYTES, left)]
                stream.read(piece)
                left -= piece.size
            part = words[start : start + piece.size]
            native.put_plane(piece[: part.size], part, byte)
            piece = piece[part.size :]
            start += part.size


def _fill_at_once(stream: SectionReader, tensors: Sequence[Bits], planes: Bytes) -> None:
    stream.read(planes.reshape(-1))
    words = np.zeros(planes.shape[1], dtype=np.uint32)
    for byte, plane in enumerate(planes):
        native.put_plane(plane, words, byte)
    start = 0
    for tensor in tensors:
        tensor[:] = words[start : start + tensor.size]
        start += tensor.size
