"""One weight of a frame: its mask as Golomb-Rice codes and its values as words, and back. No I/O.

A receiver allocates the tensor itself and one bit per entry, whatever a frame claims to keep.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.tensors import FloatArray
from sparsyedge.edge.wire import native_codec as native
from sparsyedge.edge.wire.codecs import CODECS, Codec
from sparsyedge.edge.wire.envelope import Mask, Weight
from sparsyedge.edge.wire.native_codec import Bits, Bytes, Coding, MaskBits, Positions, Sparse

__all__ = ["CodedWeight", "Lost", "bits_of", "decode_mask", "encode_entries", "encode_weight", "nonzero_entries"]

NESTED_LIMIT = 2
"""A mask of dropped entries needs a base with at most this many non-zeros per kept entry. With more, the mask gets no
shorter. The limit also lets a sender find the base's non-zeros in one pass, in memory of known size.
"""


@dataclass(frozen=True)
class CodedWeight:
    """A weight on its way into a frame."""

    entry: Weight
    codes: Bytes
    words: NDArray[Any]
    positions: Positions | None
    """The kept positions; None if all are kept."""
    base: Bits | None
    """The base's entries at those positions."""


Lost = Callable[[str, tuple[int, ...], Positions | None, FloatArray], None]
"""Gets a weight's name and shape, the positions it keeps (None for all), and what its receiver lacks of each."""


def bits_of(tensor: FloatArray) -> Bits:
    """The bit patterns of a tensor's entries, in order; shares its memory if contiguous."""
    return np.ascontiguousarray(tensor, dtype="<f4").reshape(-1).view(np.uint32)


def nonzero_entries(tensor: FloatArray) -> Sparse:
    """The non-zeros of a tensor, in the order of their positions; a zero with a sign is none of them."""
    bits = bits_of(tensor)
    found = native.nonzero(bits, native.count_nonzero(bits, native.MAGNITUDE), native.MAGNITUDE)
    assert found is not None
    return found


def encode_weight(
    name: str, tensor: FloatArray, base: FloatArray | None, codec: Codec, lost: Lost | None = None
) -> CodedWeight:
    """Mask and values of a weight, relative to a base if there is one; tells `lost` what its receiver will lack."""
    bits = bits_of(tensor)
    base_bits = None if base is None else bits_of(base)
    # A pruned entry may be -0.0. A lossless codec keeps it; a lossy one would turn it into a small number, so it goes.
    significant = native.MAGNITUDE if CODECS[codec].lossy else native.ANY_BIT
    count = native.count_nonzero(bits, significant)
    kept = None if count == bits.size else native.nonzero(bits, count, significant)
    if kept is None:
        mask, codes, near = Mask.ALL, (0, np.empty(0, dtype=np.uint8)), base_bits
    else:
        mask, codes, near = _encode_mask(kept.positions, bits.size, base_bits)
    try:
        words, scale = CODECS[codec].words_of(bits if kept is None else kept.values, near)
    except FrameError as error:
        raise FrameError(f"{name} cannot travel as {codec}: {error}") from error
    entry = Weight(name, tuple(tensor.shape), count, mask, codes[0], base is not None, scale)
    positions = None if kept is None else kept.positions
    if lost is not None:
        values = bits if kept is None else kept.values
        lost(name, entry.shape, positions, _lacking(values, words, near, CODECS[codec].coding, scale))
    return CodedWeight(entry, codes[1], words, positions, near)


def encode_entries(name: str, shape: tuple[int, ...], entries: Sparse) -> CodedWeight:
    """The weight whose other entries are zero, without a base and without loss."""
    size, count = math.prod(shape), entries.positions.size
    if count == size:
        mask, codes = Mask.ALL, (0, np.empty(0, dtype=np.uint8))
    else:
        mask, codes, _ = _encode_mask(entries.positions, size, None)
    entry = Weight(name, shape, count, mask, codes[0], False, 0.0)
    return CodedWeight(entry, codes[1], entries.values, entries.positions, None)


def _lacking(values: Bits, words: NDArray[Any], near: Bits | None, coding: Coding, scale: float) -> FloatArray:
    """The difference of values to what a receiver makes of their words."""
    received = words.view(f"u{words.dtype.itemsize}").astype(np.uint32)
    native.expand(received, count=received.size, mask=None, base=near, coding=coding, scale=scale)
    difference: FloatArray = values.view(np.float32) - received.view(np.float32)
    return difference


def decode_mask(weight: Weight, codes: Bytes, base: Bits | None) -> tuple[MaskBits | None, int]:
    """The mask of a weight (None if it keeps everything), and the number of code bytes read."""
    if weight.mask is Mask.ALL:
        return None, 0
    if weight.mask is Mask.DROPPED:
        assert base is not None
        return _decode_dropped(weight, codes, base)
    zeros = weight.mask is Mask.ZEROS
    return native.rice_mask(
        codes,
        parameter=weight.parameter,
        size=weight.size,
        count=weight.size - weight.kept if zeros else weight.kept,
        zeros=zeros,
    )


def _decode_dropped(weight: Weight, codes: Bytes, base: Bits) -> tuple[MaskBits, int]:
    mask, held = native.nonzero_mask(base)
    if not weight.kept <= held <= NESTED_LIMIT * weight.kept:
        raise FrameError(f"it keeps {weight.kept} entries of a base that has {held}, too different a count")
    ranks, used = native.rice_decode(codes, parameter=weight.parameter, size=held, count=held - weight.kept)
    native.drop(mask, base, ranks)
    return mask, used


def _encode_mask(positions: Positions, size: int, base: Bits | None) -> tuple[Mask, tuple[int, Bytes], Bits | None]:
    """The shortest mask: its kind, its codes with their parameter, and the base's entries at the kept positions."""
    held = None if base is None else native.nonzero(base, min(NESTED_LIMIT * positions.size, size))
    dropped = None if held is None else native.dropped_ranks(held, positions)
    if dropped is not None:
        ranks, near = dropped
        return Mask.DROPPED, native.rice_encode(ranks), near
    entries = None if base is None else native.gather(base, positions)
    if 2 * positions.size > size:
        return Mask.ZEROS, native.rice_encode(native.complement(positions, size)), entries
    return Mask.KEPT, native.rice_encode(positions), entries
