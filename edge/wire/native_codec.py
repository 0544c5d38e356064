"""The wire codec, in numpy: turns masks into compact positions and values into compact differences, and back.

Every function passes its arrays to `libsparsyedge_codec.so` without a copy and releases the interpreter's lock. Floats
are arrays of their bit patterns (`uint32`): -0.0 and NaN payloads survive. Invalid bytes from the wire raise
FrameError; edge/native/codec/codec.h says what each function does to the bits.
"""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.errors import ArtifactError, FrameError
from sparsyedge.edge.native import codec_path
from sparsyedge.edge.tensors import FloatArray

__all__ = [
    "Bits",
    "Bytes",
    "Coding",
    "Halves",
    "MaskBits",
    "Positions",
    "Sparse",
    "add_entries",
    "bf16",
    "change_squares",
    "complement",
    "count_nonzero",
    "difference",
    "drop",
    "dropped_ranks",
    "expand",
    "gather",
    "join_planes",
    "magnitude_order",
    "mask_entries",
    "mask_positions",
    "missing_square",
    "nonzero",
    "nonzero_mask",
    "products",
    "put_plane",
    "read_ranges",
    "remaining",
    "rice_decode",
    "rice_encode",
    "rice_mask",
    "scatter_changes",
    "split_planes",
    "square_at",
    "steps_of",
]

Bits = NDArray[np.uint32]
Halves = NDArray[np.uint16]
Positions = NDArray[np.uint32]
Bytes = NDArray[np.uint8]
MaskBits = NDArray[np.uint32]
"""One bit per entry of a tensor, set if the entry is kept."""

VERSION = 6
"""The version of the library's functions; se_codec_version() must return the same."""

TRUNCATED = -1
NO_ROOM = -5
NOT_NESTED = -6
UNREADABLE = -8
WORD_BYTES = 4
_FAULTS = {
    TRUNCATED: "the mask's codes end too early",
    -2: "a mask names an entry outside its tensor",
    -3: "a parameter is out of range",
    -4: "the mask's last byte has bits after the last code",
    NO_ROOM: "a mask keeps more entries than its header says",
    -7: "a value or a scale is NaN or infinite",
}


class Coding(enum.IntEnum):
    """How words encode values."""

    LOSSLESS = 0
    BF16 = 1
    INT8 = 2


# ---- masks -----------------------------------------------------------------------------------------------------------


ANY_BIT = 0xFFFFFFFF
MAGNITUDE = 0x7FFFFFFF
"""All bits but the sign."""


def count_nonzero(bits: Bits, significant: int = ANY_BIT) -> int:
    """The number of entries with a significant bit: ANY_BIT skips only +0.0, MAGNITUDE skips zeros of both signs."""
    return _call("se_count_nonzero", bits, bits.size, significant)


class Sparse(NamedTuple):
    """The non-zero entries of a tensor: their positions, in increasing order, and their values."""

    positions: Positions
    values: Bits


def nonzero(bits: Bits, room: int, significant: int = ANY_BIT) -> Sparse | None:
    """A tensor's non-zeros; None if there are more than `room`, the number we allocate memory for."""
    positions, values = np.empty(room, dtype=np.uint32), np.empty(room, dtype=np.uint32)
    count = _call("se_nonzero", bits, bits.size, significant, positions, values, room, allowed=NO_ROOM)
    return None if count == NO_ROOM else Sparse(positions[:count], values[:count])


def complement(positions: Positions, size: int, *, start: int = 0, into: Positions | None = None) -> Positions:
    """The positions below `size` that are not given, each plus `start`."""
    others = np.empty(size - positions.size, dtype=np.uint32) if into is None else into
    _call("se_complement", positions, positions.size, size, start, others, others.size)
    return others


def rice_encode(positions: Positions) -> tuple[int, Bytes]:
    """Encode the gaps of increasing positions as Golomb-Rice codes; returns the best parameter and the bytes."""
    parameter = ctypes.c_uint32()
    codes = np.empty(_call("se_rice_plan", positions, positions.size, ctypes.byref(parameter)), dtype=np.uint8)
    _call("se_rice_encode", positions, positions.size, parameter, codes, codes.size)
    return parameter.value, codes


def rice_decode(
    codes: Bytes, *, parameter: int, size: int, count: int, start: int = 0, into: Positions | None = None
) -> tuple[Positions, int]:
    """Decode `count` positions below `size` from the start of `codes`; also returns the number of bytes read.

    Adds `start` to each. `into` is where to put them, if not into a new array.
    """
    # A code has at least one bit, so memory for positions never exceeds 32 times the bytes received.
    if count > 8 * codes.size:
        raise FrameError(_FAULTS[TRUNCATED])
    positions = np.empty(count, dtype=np.uint32) if into is None else into
    assert positions.size == count
    used = _call("se_rice_decode", codes, codes.size, parameter, size, start, positions, count)
    return positions, used


def dropped_ranks(base: Sparse, kept: Positions) -> tuple[Positions, Bits] | None:
    """The base entries that are not kept, as ranks by magnitude, and the base's values at those that are.

    None if a kept entry is missing from the base.
    """
    if kept.size > base.positions.size:
        return None
    ranks = np.empty(base.positions.size - kept.size, dtype=np.uint32)
    values = np.empty(kept.size, dtype=np.uint32)
    flags = np.empty(base.positions.size, dtype=np.uint8)
    order = magnitude_order(base.values)
    arguments = (*base, base.values.size, order, kept, kept.size, flags, values, ranks, ranks.size)
    return None if _call("se_dropped_ranks", *arguments, allowed=NOT_NESTED) == NOT_NESTED else (ranks, values)


def remaining(base: Sparse, order: Positions, ranks: Positions, *, into: Sparse) -> float:
    """Put the base's entries without those of the given ranks into two arrays: the inverse of dropped_ranks.

    Returns the sum of squares of the entries with these ranks.
    """
    assert into.positions.size == into.values.size
    flags = np.empty(base.positions.size, dtype=np.uint8)
    dropped = ctypes.c_double()
    arguments = (*base, base.values.size, order, ranks, ranks.size, flags, *into, into.values.size)
    _call("se_remaining", *arguments, ctypes.byref(dropped))
    return dropped.value


def rice_mask(codes: Bytes, *, parameter: int, size: int, count: int, zeros: bool) -> tuple[MaskBits, int]:
    """The mask from codes that list the `count` kept entries, or the dropped ones; also the number of bytes read."""
    mask = _empty_mask(size)
    return mask, _call("se_rice_mask", codes, codes.size, parameter, size, count, zeros, mask)


def nonzero_mask(bits: Bits) -> tuple[MaskBits, int]:
    """The mask of the entries with any bit set, and their number."""
    mask = _empty_mask(bits.size)
    return mask, _call("se_nonzero_mask", bits, bits.size, mask)


def drop(mask: MaskBits, base: Bits, ranks: Positions) -> None:
    """Remove the entries of the given ranks from the mask of a base's non-zeros: the inverse of dropped_ranks."""
    assert mask.size == -(-base.size // 32)
    _call("se_drop", base, base.size, ranks, ranks.size, mask)


def mask_positions(mask: MaskBits, size: int, piece: int = 1 << 14) -> Iterator[Positions]:
    """The kept positions of a mask, a piece at a time; asking for the next piece overwrites the last."""
    positions, following = np.empty(piece, dtype=np.uint32), ctypes.c_size_t(0)
    while count := _call("se_mask_positions", mask, size, ctypes.byref(following), positions, piece):
        yield positions[:count]


def mask_entries(mask: MaskBits, bits: Bits, piece: int = 1 << 14) -> Iterator[Bits]:
    """The entries of a tensor that its mask keeps, likewise a piece at a time."""
    assert mask.size == -(-bits.size // 32)
    entries, following = np.empty(piece, dtype=np.uint32), ctypes.c_size_t(0)
    while count := _call("se_mask_entries", mask, bits, bits.size, ctypes.byref(following), entries, piece):
        yield entries[:count]


def _empty_mask(size: int) -> MaskBits:
    return np.empty(-(-size // 32), dtype=np.uint32)


def magnitude_order(bits: Bits) -> Positions:
    """The indices of values by magnitude, smallest first, as frames rank a base's non-zeros."""
    order = np.empty(bits.size, dtype=np.uint32)
    _call("se_magnitude_order", bits, bits.size, order)
    return order


def gather(bits: Bits, positions: Positions, *, into: Bits | None = None) -> Bits:
    """The entries at the given positions."""
    values = np.empty(positions.size, dtype=np.uint32) if into is None else into
    assert values.size == positions.size
    _call("se_gather", bits, bits.size, positions, positions.size, values)
    return values


# ---- values ----------------------------------------------------------------------------------------------------------


def split_planes(words: NDArray[Any]) -> Bytes:
    """All lowest bytes of the words, then all second bytes, and so on: one row per byte of a word."""
    width = words.dtype.itemsize
    planes = np.empty((width, words.size), dtype=np.uint8)
    _call("se_split_planes", words, words.size, width, planes)
    return planes


def join_planes(planes: Bytes, words: Bits, width: int) -> None:
    """Make words of planes, one after the other as `split_planes` makes them; bytes beyond `width` become zero."""
    assert planes.size == width * words.size
    _call("se_join_planes", planes, words.size, width, words)


def put_plane(plane: Bytes, words: Bits, byte: int) -> None:
    """Set one byte of each word; byte 0 is the lowest."""
    assert plane.size == words.size
    _call("se_put_plane", plane, plane.size, byte, words)


def expand(
    bits: Bits, *, count: int, mask: MaskBits | None, base: Bits | None, coding: Coding, scale: float = 0.0
) -> None:
    """Expand a tensor in place: its last `count` entries hold the words of the kept values; all others become zero.

    Without a mask every entry is kept; without a base words stand alone. Gives the same bits on every machine.
    """
    assert base is None or base.size == bits.size
    assert mask is None or mask.size == -(-bits.size // 32)
    _call("se_expand", mask, bits.size, count, base, coding, scale, bits)


def difference(words: NDArray[Any], base: NDArray[Any]) -> NDArray[Any]:
    """Differences of 16- or 32-bit patterns to a base, sign in the lowest bit: near values give small numbers."""
    assert (words.size, words.dtype) == (base.size, base.dtype)
    out = np.empty_like(words)
    _call(f"se_difference{8 * words.dtype.itemsize}", words, base, words.size, out)
    return out


def bf16(bits: Bits) -> Halves:
    """Floats rounded to their upper 16 bits, ties to even."""
    halves = np.empty(bits.size, dtype=np.uint16)
    _call("se_bf16_round", bits, bits.size, halves)
    return halves


def steps_of(bits: Bits, base: Bits) -> tuple[NDArray[np.int8], float]:
    """Differences to the base as steps from -127 to 127, and the step size (float32); FrameError if not finite.

    A step is positive if the value is further from zero than the base, or would be if it went on that way.
    """
    assert bits.size == base.size
    steps = np.empty(bits.size, dtype=np.int8)
    scale = ctypes.c_float()
    _call("se_int8_encode", bits, base, bits.size, steps, ctypes.byref(scale))
    return steps, scale.value


# ---- sums over updates -----------------------------------------------------------------------------------------------


def add_entries(
    positions: Positions, values: FloatArray, *, first: int, weight: float, sums: NDArray[np.float64]
) -> None:
    """Add weighted entries to a stretch of sums that starts at position `first`."""
    assert positions.size == values.size
    _call("se_add_entries", positions, values, values.size, first, sums.size, weight, sums)


def missing_square(found: Sparse, kept: Positions) -> float:
    """The sum of squares of the values whose positions are not kept."""
    total = ctypes.c_double()
    _call("se_missing_square", *found, found.values.size, kept, kept.size, ctypes.byref(total))
    return total.value


def square_at(values: FloatArray, positions: Positions) -> float:
    """The sum of squares of the values at the given positions."""
    total = ctypes.c_double()
    _call("se_square_at", values, values.size, positions, positions.size, ctypes.byref(total))
    return total.value


def scatter_changes(
    positions: Positions,
    values: FloatArray,
    ends: NDArray[np.int64],
    *,
    base: FloatArray,
    first: int,
    columns: NDArray[np.int32],
    matrix: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Put the changes to a stretch of the base into the columns of a matrix; returns the sum of squares of each row.

    Row `r` has the entries from `ends[r]` to `ends[r + 1]`. Entries that are zero, or whose column is negative, are
    left out of it.
    """
    assert positions.size == values.size == ends[-1]
    assert base.size == columns.size
    rows, width = matrix.shape
    assert ends.size == rows + 1
    squares = np.zeros(rows)
    stretch = (base, first, base.size, columns)
    _call("se_scatter_changes", positions, values, ends, rows, *stretch, width, matrix, squares)
    return squares


def read_ranges(
    files: NDArray[np.int32],
    offsets: NDArray[np.int64],
    sizes: NDArray[np.int64],
    places: NDArray[np.int64],
    out: NDArray[Any],
) -> None:
    """Read ranges of words of open files to places in `out`, which has 4 bytes an entry; offsets are bytes.

    Raises OSError if a file is shorter.
    """
    assert files.size == offsets.size == sizes.size == places.size
    assert not files.size or int((places + sizes).max()) <= out.size
    assert out.itemsize == WORD_BYTES
    if _call("se_read_ranges", files, offsets, sizes, places, files.size, out, allowed=UNREADABLE):
        raise OSError("the file of a round's updates cannot be read, or is shorter than what was written to it")


def products(a: FloatArray, b: FloatArray, starts: NDArray[np.int64]) -> tuple[NDArray[np.float64], bool]:
    """Per stretch: sums of (a - b)², a², b² and ab, and the non-zeros of a, b and both; also whether a is finite."""
    assert a.size == b.size
    out = np.zeros((starts.size - 1, 7))
    return out, _call("se_products", a, b, starts, starts.size - 1, out) == 0


def change_squares(
    a: FloatArray, b: FloatArray, bounds: NDArray[np.int64], owners: NDArray[np.int32], sums: NDArray[np.float64]
) -> None:
    """Add the sum of (a - b)² over each stretch to the sum of its owner.

    A stretch is summed in the order of numpy's `einsum("i,i->")`: the bits of a norm depend on it.
    """
    assert a.size == b.size
    assert bounds.size == owners.size + 1
    _call("se_change_squares", a, b, bounds, owners, owners.size, sums)


# ---- the library -----------------------------------------------------------------------------------------------------

_ARRAY, _SIZE, _COUNT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64
_WORD, _FLOAT = ctypes.c_uint32, ctypes.c_float
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "se_count_nonzero": (_ARRAY, _SIZE, _WORD),
    "se_nonzero": (_ARRAY, _SIZE, _WORD, _ARRAY, _ARRAY, _SIZE),
    "se_complement": (_ARRAY, _SIZE, _SIZE, _WORD, _ARRAY, _SIZE),
    "se_rice_plan": (_ARRAY, _SIZE, ctypes.POINTER(_WORD)),
    "se_rice_encode": (_ARRAY, _SIZE, _WORD, _ARRAY, _SIZE),
    "se_rice_decode": (_ARRAY, _SIZE, _WORD, _SIZE, _WORD, _ARRAY, _SIZE),
    "se_magnitude_order": (_ARRAY, _SIZE, _ARRAY),
    "se_dropped_ranks": (_ARRAY, _ARRAY, _SIZE, _ARRAY, _ARRAY, _SIZE, _ARRAY, _ARRAY, _ARRAY, _SIZE),
    "se_remaining": (
        *(_ARRAY, _ARRAY, _SIZE, _ARRAY, _ARRAY, _SIZE, _ARRAY, _ARRAY, _ARRAY, _SIZE),
        ctypes.POINTER(ctypes.c_double),
    ),
    "se_rice_mask": (_ARRAY, _SIZE, _WORD, _SIZE, _SIZE, _WORD, _ARRAY),
    "se_nonzero_mask": (_ARRAY, _SIZE, _ARRAY),
    "se_drop": (_ARRAY, _SIZE, _ARRAY, _SIZE, _ARRAY),
    "se_mask_positions": (_ARRAY, _SIZE, ctypes.POINTER(_SIZE), _ARRAY, _SIZE),
    "se_mask_entries": (_ARRAY, _ARRAY, _SIZE, ctypes.POINTER(_SIZE), _ARRAY, _SIZE),
    "se_gather": (_ARRAY, _SIZE, _ARRAY, _SIZE, _ARRAY),
    "se_split_planes": (_ARRAY, _SIZE, _SIZE, _ARRAY),
    "se_join_planes": (_ARRAY, _SIZE, _SIZE, _ARRAY),
    "se_put_plane": (_ARRAY, _SIZE, _SIZE, _ARRAY),
    "se_difference32": (_ARRAY, _ARRAY, _SIZE, _ARRAY),
    "se_difference16": (_ARRAY, _ARRAY, _SIZE, _ARRAY),
    "se_bf16_round": (_ARRAY, _SIZE, _ARRAY),
    "se_int8_encode": (_ARRAY, _ARRAY, _SIZE, _ARRAY, ctypes.POINTER(_FLOAT)),
    "se_add_entries": (_ARRAY, _ARRAY, _SIZE, _WORD, _SIZE, ctypes.c_double, _ARRAY),
    "se_missing_square": (_ARRAY, _ARRAY, _SIZE, _ARRAY, _SIZE, ctypes.POINTER(ctypes.c_double)),
    "se_square_at": (_ARRAY, _SIZE, _ARRAY, _SIZE, ctypes.POINTER(ctypes.c_double)),
    "se_scatter_changes": (
        *(_ARRAY, _ARRAY, _ARRAY, _SIZE),
        *(_ARRAY, _WORD, _SIZE, _ARRAY),
        *(_SIZE, _ARRAY, _ARRAY),
    ),
    "se_read_ranges": (_ARRAY, _ARRAY, _ARRAY, _ARRAY, _SIZE, _ARRAY),
    "se_products": (_ARRAY, _ARRAY, _ARRAY, _SIZE, _ARRAY),
    "se_change_squares": (_ARRAY, _ARRAY, _ARRAY, _ARRAY, _SIZE, _ARRAY),
    "se_expand": (_ARRAY, _SIZE, _SIZE, _ARRAY, _WORD, _FLOAT, _ARRAY),
}


@cache
def _library() -> ctypes.CDLL:
    path = codec_path()
    library = ctypes.CDLL(str(path))
    library.se_codec_version.restype = _COUNT
    found = library.se_codec_version()
    if found != VERSION:
        raise ArtifactError(
            f"{path} is version {found} of the wire codec, this sparsyedge needs {VERSION}; run `make setup` again"
        )
    for name, argtypes in _ARGUMENTS.items():
        function = library[name]
        function.argtypes = argtypes
        function.restype = _COUNT
        setattr(library, name, function)
    return library


def _call(name: str, *arguments: Any, allowed: int = 0) -> int:
    """Call a library function on arrays and numbers; a negative result other than `allowed` raises FrameError."""
    result: int = getattr(_library(), name)(*map(_native, arguments))
    if result < 0 and result != allowed:
        raise FrameError(_FAULTS[result])
    return result


def _native(argument: Any) -> Any:
    """An array becomes the address of its memory; anything else stays as it is."""
    if not isinstance(argument, np.ndarray):
        return argument
    assert argument.flags.c_contiguous
    # Twice as fast as `.ctypes.data`, which creates an object on the way; a frame takes a thousand of these calls.
    return argument.__array_interface__["data"][0]
