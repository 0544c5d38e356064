"""Frames: a model's state as bytes, without its zeros and without what the receiver has already. No I/O.

    encoded = encode_frame(state, run=..., round_number=..., base_id=..., base=..., codec="bf16", prunable=...)
    frame = decode_frame(encoded.frame, shapes, base=...)       # frame.state is bit for bit encoded.decoded

A weight (a tensor that is pruned) travels as a mask and the values that it keeps; every other tensor as all its values.
The mask is explicit: a value that is rounded to zero keeps its place. With a base, the model that both sides hold,
masks are what was dropped of the base's non-zeros, and values are differences. Everything that a header claims is
checked against the receiver's own table of shapes before memory is taken for it; beyond the decoded state itself,
memory grows with the entries that are kept. docs/protocol.md has the format byte by byte.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from sparsyedge.edge import codec as native
from sparsyedge.edge.codec import Bits, Positions
from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.frame import (
    BASE_CHECK_BYTES,
    Codec,
    FrameHeader,
    Other,
    Weight,
    check_tensors,
    decompress,
    read_header,
    seal,
    sections,
)
from sparsyedge.edge.tensors import FloatArray, State
from sparsyedge.edge.weights import (
    WORDS,
    CodedWeight,
    bits_of,
    decode_mask,
    decode_values,
    dense,
    encode_weight,
)

__all__ = [
    "DEFAULT_CODEC",
    "LOSSLESS",
    "Codec",
    "Encoded",
    "Frame",
    "FrameHeader",
    "codec_for",
    "decode_frame",
    "encode_frame",
    "read_header",
]

LOSSLESS: Codec = "lossless"
DEFAULT_CODEC = LOSSLESS

# Trained values repeat nothing worth pointing back to: matches that zstd finds in them are chance, and cost more than
# they save. A table of 64 places finds few of those and still the long runs of zeros; the entropy code does the rest.
ZSTD = zstandard.ZstdCompressionParameters.from_level(1, hash_log=6)


@dataclass(frozen=True)
class Encoded:
    """A frame, and what its receiver will hold."""

    frame: bytes
    decoded: State
    """Bit for bit what decode_frame gives; the very tensors that were encoded, where nothing is lost."""


@dataclass(frozen=True)
class Frame:
    """A decoded frame."""

    header: FrameHeader
    state: State


def codec_for(codec: Codec, base: Mapping[str, FloatArray] | None) -> Codec:
    """How a run with that codec codes a frame: int8 is a step from a base, so a frame without one is coded in bf16."""
    return "bf16" if codec == "int8" and base is None else codec


def encode_frame(
    state: Mapping[str, FloatArray],
    *,
    run: str,
    round_number: int,
    base_id: str,
    base: Mapping[str, FloatArray] | None = None,
    codec: Codec = DEFAULT_CODEC,
    prunable: Collection[str],
) -> Encoded:
    """The state as one frame; the same arguments always give the same bytes.

    A tensor that the base lacks travels on its own. Raises FrameError where the codec cannot carry the values.
    """
    held = base or {}
    decoded = {name: np.asarray(tensor, dtype=np.float32) for name, tensor in state.items()}
    weights = [
        encode_weight(name, decoded[name], _of_shape(held, name, decoded[name].shape), codec)
        for name in sorted(set(prunable) & set(decoded))
    ]
    others = [
        _encode_other(name, decoded[name], _of_shape(held, name, decoded[name].shape))
        for name in sorted(set(decoded) - set(prunable), key=_kind_and_name)
    ]
    masks = b"".join(weight.codes.tobytes() for weight in weights)
    weight_section = _compress([weight.words for weight in weights])
    other_section = _compress([np.concatenate(words) for words in _by_kind(others)])
    header = FrameHeader(
        run=run,
        round=round_number,
        base_id=base_id,
        base_check=_base_check(
            [(weight.positions, weight.base) for weight in weights] + [(None, other.base) for other in others]
        ),
        codec=codec,
        weights=tuple(weight.entry for weight in weights),
        others=tuple(other.entry for other in others),
        mask_bytes=len(masks),
        weight_bytes=len(weight_section),
        other_bytes=len(other_section),
    )
    if codec != LOSSLESS:
        decoded |= {weight.entry.name: _decoded(weight, codec) for weight in weights}
    return Encoded(seal(header, masks, weight_section, other_section), decoded)


def decode_frame(
    frame: bytes, shapes: Mapping[str, tuple[int, ...]], base: Mapping[str, FloatArray] | None = None
) -> Frame:
    """The state in a frame, which must hold exactly the tensors of `shapes`; raises FrameError for anything else.

    A frame that is a difference needs the model `header.base_id` as its base; a base that is not needed is ignored.
    """
    header = read_header(frame)
    check_tensors(header, shapes)
    masks, weight_section, other_section = sections(frame, header)
    held = _base_bits(header, base)
    kept = [*_decode_masks(header.weights, masks, held), *((None, held.get(other.name)) for other in header.others)]
    if _base_check(kept) != header.base_check:
        raise FrameError(f"frame is a difference to model {header.base_id[:12]!r}; the base at hand is another model")
    words = itertools.chain(
        _words(weight_section, [weight.kept for weight in header.weights], WORDS[header.codec]),
        _words(other_section, [other.size for other in header.others], WORDS[LOSSLESS]),
    )
    state: State = {}
    for tensor, (positions, near), coded in zip(header.tensors, kept, words, strict=True):
        codec, scale = (header.codec, tensor.scale) if isinstance(tensor, Weight) else (LOSSLESS, 0.0)
        values = decode_values(coded, near, codec=codec, scale=scale)
        state[tensor.name] = dense(values, positions, tensor.shape)
    return Frame(header, state)


# ---- the base --------------------------------------------------------------------------------------------------------


def _of_shape(base: Mapping[str, FloatArray], name: str, shape: tuple[int, ...]) -> FloatArray | None:
    tensor = base.get(name)
    if tensor is not None and tensor.shape != shape:
        raise FrameError(f"the base has {name} with shape {tensor.shape}, the model has {shape}")
    return tensor


def _base_bits(header: FrameHeader, base: Mapping[str, FloatArray] | None) -> dict[str, Bits]:
    """The base's tensors that a frame builds upon."""
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


def _base_check(used: Iterable[tuple[Positions | None, Bits | None]]) -> bytes:
    """A short hash of the base's entries that a frame builds upon and of where they are; empty where it uses none.

    Another base gives other entries, so it is found out before a wrong model is made of it.
    """
    digest = None
    for positions, bits in used:
        if bits is None:
            continue
        digest = digest or hashlib.sha256()
        if positions is not None:
            digest.update(positions.data)
        digest.update(bits.data)
    return digest.digest()[:BASE_CHECK_BYTES] if digest else b""


# ---- tensors ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _CodedOther:
    entry: Other
    words: Bits
    base: Bits | None


def _encode_other(name: str, tensor: FloatArray, base: FloatArray | None) -> _CodedOther:
    bits = bits_of(tensor)
    if base is None:
        return _CodedOther(Other(name, tuple(tensor.shape), difference=False), bits, None)
    base_bits = bits_of(base)
    words = native.difference(bits, base_bits)
    return _CodedOther(Other(name, tuple(tensor.shape), difference=True), words, base_bits)


def _kind_and_name(name: str) -> tuple[str, str]:
    """Biases beside biases and variances beside variances: like values compress better together."""
    return name.rpartition(".")[2], name


def _by_kind(others: Sequence[_CodedOther]) -> Iterator[list[Bits]]:
    for _, alike in itertools.groupby(others, key=lambda other: _kind_and_name(other.entry.name)[0]):
        yield [other.words for other in alike]


def _decoded(weight: CodedWeight, codec: Codec) -> FloatArray:
    values = decode_values(weight.words, weight.base, codec=codec, scale=weight.entry.scale)
    return dense(values, weight.positions, weight.entry.shape)


def _decode_masks(
    weights: Sequence[Weight], section: bytes, held: Mapping[str, Bits]
) -> Iterator[tuple[Positions | None, Bits | None]]:
    """What each weight keeps, and the base's entries there."""
    codes = np.frombuffer(section, dtype=np.uint8)
    for weight in weights:
        try:
            positions, near, used = decode_mask(weight, codes, held.get(weight.name))
        except FrameError as error:
            raise FrameError(f"mask of {weight.name}: {error}") from error
        codes = codes[used:]
        yield positions, near
    if codes.size:
        raise FrameError(f"{codes.size} bytes are left behind the last mask")


# ---- value sections --------------------------------------------------------------------------------------------------


def _compress(groups: Sequence[NDArray[Any]]) -> bytes:
    """The words of all groups as byte planes, in zstd; each plane of a group is a block with its own entropy code."""
    planes = [native.split_planes(words) for words in groups if words.size]
    if not planes:
        return b""
    stream = zstandard.ZstdCompressor(compression_params=ZSTD).compressobj(size=sum(plane.size for plane in planes))
    parts = []
    for byte in range(len(planes[0])):
        for plane in planes:
            parts += [stream.compress(plane[byte]), stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)]
    return b"".join((*parts, stream.flush()))


def _words(section: bytes, counts: Sequence[int], word: np.dtype[Any]) -> Iterator[NDArray[Any]]:
    """The words of a value section, tensor after tensor."""
    words = native.join_planes(decompress(section, word.itemsize * sum(counts)), word)
    start = 0
    for count in counts:
        yield words[start : start + count]
        start += count
