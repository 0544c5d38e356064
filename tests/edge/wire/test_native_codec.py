"""Compares the native codec with numpy, for any input."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from sparsyedge.edge import native
from sparsyedge.edge.errors import ArtifactError, FrameError
from sparsyedge.edge.tensors import FloatArray
from sparsyedge.edge.wire import native_codec as codec
from sparsyedge.edge.wire.native_codec import Bits, Coding, MaskBits, Positions, Sparse

# The first call of a test loads the library, which takes longer than Hypothesis allows an example by default.
patiently = settings(deadline=None)

# Every float32 is a pattern of 32 bits; the interesting ones come up often.
patterns = st.one_of(
    st.sampled_from([0, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00001, 0xFFFFFFFF, 1, 0x3F800000, 0x3F808000]),
    st.integers(0, 2**32 - 1),
)
bits_arrays = hnp.arrays(np.uint32, st.integers(0, 200), elements=patterns)
sparse_arrays = hnp.arrays(np.uint32, st.integers(0, 200), elements=st.one_of(st.just(0), patterns))
position_sets = st.builds(
    lambda size, seed, density: (
        size,
        np.flatnonzero(np.random.default_rng(seed).random(size) < density).astype(np.uint32),
    ),
    st.integers(0, 3000),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 0.001, 0.05, 0.4, 0.95, 1.0]),
)


def floats(*values: float) -> Bits:
    return np.array(values, dtype=np.float32).view(np.uint32)


def sparse(bits: Bits) -> Sparse:
    found = codec.nonzero(bits, bits.size)
    assert found is not None
    return found


def mask_of(positions: Positions, size: int) -> MaskBits:
    kept = np.zeros(-(-size // 32) * 32, dtype=np.uint8)
    kept[positions] = 1
    return np.packbits(kept, bitorder="little").view(np.uint32)


def positions_of(mask: MaskBits, size: int) -> Positions:
    kept = np.unpackbits(mask.view(np.uint8), bitorder="little")
    assert not kept[size:].any()
    return np.flatnonzero(kept).astype(np.uint32)


def values_of(words: NDArray[Any], base: Bits | None, coding: Coding, scale: float = 0.0) -> Bits:
    """What words stand for where everything is kept."""
    bits = words.view(f"u{words.dtype.itemsize}").astype(np.uint32)
    codec.expand(bits, count=bits.size, mask=None, base=base, coding=coding, scale=scale)
    return bits


# ---- masks -----------------------------------------------------------------------------------------------------------


@patiently
@given(sparse_arrays)
def test_nonzeros_are_what_has_a_bit_set(bits: Bits) -> None:
    found = sparse(bits)
    assert codec.count_nonzero(bits) == found.positions.size
    np.testing.assert_array_equal(found.positions, np.flatnonzero(bits))
    np.testing.assert_array_equal(found.values, bits[bits != 0])


@patiently
@given(sparse_arrays)
def test_zeros_of_both_signs_have_no_magnitude(bits: Bits) -> None:
    expected = np.flatnonzero(bits & 0x7FFFFFFF)
    assert codec.count_nonzero(bits, codec.MAGNITUDE) == expected.size
    found = codec.nonzero(bits, expected.size, codec.MAGNITUDE)
    assert found is not None
    np.testing.assert_array_equal(found.positions, expected)


@patiently
@given(sparse_arrays, st.integers(0, 200))
def test_more_nonzeros_than_room_are_not_written(bits: Bits, room: int) -> None:
    assert (codec.nonzero(bits, room) is None) == (np.count_nonzero(bits) > room)


@patiently
@given(position_sets)
def test_complement_is_everything_else(case: tuple[int, Positions]) -> None:
    size, positions = case
    np.testing.assert_array_equal(codec.complement(positions, size), np.setdiff1d(np.arange(size), positions))


@patiently
@given(position_sets, st.binary(max_size=9))
def test_positions_survive_rice_codes_whatever_follows_them(case: tuple[int, Positions], tail: bytes) -> None:
    size, positions = case
    parameter, codes = codec.rice_encode(positions)
    stream = np.concatenate([codes, np.frombuffer(tail, dtype=np.uint8)])
    decoded, used = codec.rice_decode(stream, parameter=parameter, size=size, count=positions.size)
    np.testing.assert_array_equal(decoded, positions)
    assert used == codes.size


@patiently
@given(st.integers(0, 2**32 - 1), st.integers(0, 400), st.integers(0, 12), st.integers(0, 9), st.integers(0, 1000))
def test_short_and_long_gaps_take_turns(seed: int, count: int, long_share: int, parameter: int, start: int) -> None:
    rng = np.random.default_rng(seed)
    gaps = np.where(rng.random(count) < long_share / 100, rng.integers(0, 4000, count), rng.integers(0, 40, count))
    positions = (np.cumsum(gaps + 1) - 1).astype(np.uint32)
    size = int(positions[-1]) + 1 if count else 0
    codes = np.array(_rice_bytes(positions.tolist(), parameter=parameter), dtype=np.uint8)
    into = np.zeros(count + 1, dtype=np.uint32)
    _, used = codec.rice_decode(codes, parameter=parameter, size=size, count=count, start=start, into=into[:-1])
    np.testing.assert_array_equal(into[:-1], positions + np.uint32(start))
    assert (used, into[-1]) == (codes.size, 0)
    if size > count:
        with pytest.raises(FrameError, match="outside its tensor"):
            codec.rice_decode(codes, parameter=parameter, size=size - 1, count=count)
    if count:
        with pytest.raises(FrameError, match="end too early"):
            codec.rice_decode(codes[:-1], parameter=parameter, size=size, count=count)


@patiently
@given(position_sets, st.integers(0, 1000))
def test_complement_writes_nothing_beyond_its_room(case: tuple[int, Positions], start: int) -> None:
    size, positions = case
    into = np.full(size - positions.size + 1, 7, dtype=np.uint32)
    codec.complement(positions, size, start=start, into=into[:-1])
    np.testing.assert_array_equal(into[:-1], np.setdiff1d(np.arange(size), positions) + start)
    assert into[-1] == 7


def test_positions_at_the_end_of_the_largest_tensor_survive() -> None:
    positions = np.array([0, 2**31, 2**32 - 2], dtype=np.uint32)
    parameter, codes = codec.rice_encode(positions)
    decoded, _ = codec.rice_decode(codes, parameter=parameter, size=2**32 - 1, count=3)
    np.testing.assert_array_equal(decoded, positions)


def test_gaps_are_written_as_zeros_a_one_and_low_bits_from_the_lowest_bit_on() -> None:
    # Gaps 5 and 0 with k = 1: 00 1 1, then 1 0; padded with zeros. Read from the lowest bit: 0b00_01_1100.
    assert _rice_bytes([5, 6], parameter=1) == [0b00011100]


def _rice_bytes(positions: list[int], *, parameter: int) -> list[int]:
    array = np.array(positions, dtype=np.uint32)
    out = np.zeros(8 + sum(positions[-1:]) // 8 + 4 * len(positions), dtype=np.uint8)
    return list(out[: codec._call("se_rice_encode", array, array.size, parameter, out, out.size)])


@patiently
@given(position_sets)
def test_no_other_rice_parameter_is_shorter(case: tuple[int, Positions]) -> None:
    _, positions = case
    gaps = np.concatenate([positions[:1], positions[1:] - positions[:-1] - 1]).astype(np.int64)
    _, codes = codec.rice_encode(positions)
    costs = [int((gaps >> k).sum()) + (k + 1) * gaps.size for k in range(32)]
    assert codes.size == -(-min(costs) // 8)


def test_rice_codes_stay_near_the_entropy_of_random_masks() -> None:
    rng = np.random.default_rng(3)
    for density in (0.001, 0.05, 0.2, 0.45):
        mask = rng.random(200_000) < density
        share = mask.mean()
        bound = -mask.size * (share * np.log2(share) + (1 - share) * np.log2(1 - share)) / 8
        assert codec.rice_encode(np.flatnonzero(mask).astype(np.uint32))[1].size < 1.045 * bound


@patiently
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 500), kept=st.floats(0, 1))
def test_subset_of_a_base_survives_as_dropped_ranks(seed: int, size: int, kept: float) -> None:
    rng = np.random.default_rng(seed)
    tensor = rng.integers(0, 2**32, size, dtype=np.uint32) * (rng.random(size) < 0.5).astype(np.uint32)
    # Few magnitudes among many: their order is by position.
    tensor &= np.uint32(0xC0FFFFFF)
    base = sparse(tensor)
    stays = rng.random(base.positions.size) < kept
    dropped = codec.dropped_ranks(base, base.positions[stays])
    assert dropped is not None
    ranks, near = dropped
    np.testing.assert_array_equal(near, base.values[stays])
    mask, count = codec.nonzero_mask(tensor)
    assert count == base.positions.size
    codec.drop(mask, tensor, ranks)
    np.testing.assert_array_equal(positions_of(mask, size), base.positions[stays])


@patiently
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(0, 500), kept=st.floats(0, 1))
def test_what_remains_of_a_base_is_what_was_not_dropped(seed: int, size: int, kept: float) -> None:
    rng = np.random.default_rng(seed)
    tensor = rng.standard_normal(size, dtype=np.float32) * (rng.random(size) < 0.5)
    base = sparse(tensor.astype(np.float32).view(np.uint32))
    stays = rng.random(base.positions.size) < kept
    dropped = codec.dropped_ranks(base, base.positions[stays])
    assert dropped is not None
    room = int(stays.sum())
    found = Sparse(np.zeros(room + 1, dtype=np.uint32), np.zeros(room + 1, dtype=np.uint32))
    into = Sparse(found.positions[:-1], found.values[:-1])
    square = codec.remaining(base, codec.magnitude_order(base.values), dropped[0], into=into)
    np.testing.assert_array_equal(found.positions, [*base.positions[stays], 0])
    np.testing.assert_array_equal(found.values, [*base.values[stays], 0])
    gone = base.values[~stays].view(np.float32).astype(np.float64)
    assert square == pytest.approx(float((gone**2).sum()), rel=1e-12)


def test_ranks_that_the_base_does_not_have_are_refused() -> None:
    base = sparse(floats(1.0, 0.0, 2.0))
    into = Sparse(np.zeros(1, dtype=np.uint32), np.zeros(1, dtype=np.uint32))
    with pytest.raises(FrameError, match="outside its tensor"):
        codec.remaining(base, codec.magnitude_order(base.values), np.array([2], dtype=np.uint32), into=into)


def test_dropped_entries_come_first_where_the_small_ones_were_dropped() -> None:
    base = sparse(floats(3.0, -0.5, 0.0, 7.0, 0.25, -2.0))
    dropped = codec.dropped_ranks(base, np.array([0, 3, 5], dtype=np.uint32))
    assert dropped is not None
    assert dropped[0].tolist() == [0, 1]


def test_entry_that_the_base_lacks_is_not_nested() -> None:
    base = sparse(floats(1.0, 0.0, 2.0))
    assert codec.dropped_ranks(base, np.array([1], dtype=np.uint32)) is None
    assert codec.dropped_ranks(base, np.array([0, 1, 2], dtype=np.uint32)) is None


@patiently
@given(position_sets, st.booleans())
def test_mask_has_a_bit_for_every_entry_that_is_kept(case: tuple[int, Positions], zeros: bool) -> None:
    size, positions = case
    parameter, codes = codec.rice_encode(positions)
    mask, used = codec.rice_mask(codes, parameter=parameter, size=size, count=positions.size, zeros=zeros)
    assert used == codes.size
    expected = np.setdiff1d(np.arange(size), positions) if zeros else positions
    np.testing.assert_array_equal(positions_of(mask, size), expected)


@pytest.mark.parametrize("ranks", [[3], [2**32 - 1], [1, 1], [2, 0]])
def test_ranks_that_no_sender_gives_are_refused(ranks: list[int]) -> None:
    base = floats(1, 0, 2, 3)
    with pytest.raises(FrameError, match="outside its tensor"):
        codec.drop(codec.nonzero_mask(base)[0], base, np.array(ranks, dtype=np.uint32))


@patiently
@given(position_sets, st.integers(1, 100))
def test_what_a_mask_keeps_comes_in_pieces(case: tuple[int, Positions], piece: int) -> None:
    size, positions = case
    mask, bits = mask_of(positions, size), np.arange(7, size + 7, dtype=np.uint32)
    pieces = [part.copy() for part in codec.mask_positions(mask, size, piece)]
    entries = [part.copy() for part in codec.mask_entries(mask, bits, piece)]
    assert all(part.size == piece for part in (*pieces[:-1], *entries[:-1]))
    np.testing.assert_array_equal(np.concatenate([*pieces, positions[:0]]), positions)
    np.testing.assert_array_equal(np.concatenate([*entries, bits[:0]]), bits[positions])


def test_position_outside_its_tensor_is_refused() -> None:
    outside = np.array([3], dtype=np.uint32)
    with pytest.raises(FrameError, match="outside its tensor"):
        codec.gather(floats(1, 2, 3), outside)


# ---- hostile codes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codes", "parameter", "size", "count", "fault"),
    [
        (b"", 0, 10, 1, "end too early"),
        (b"\x00\x00", 0, 100, 1, "end too early"),
        (b"\x80", 3, 100, 1, "end too early"),
        (b"\x00\x01", 0, 8, 1, "outside its tensor"),
        (bytes(1000) + b"\x01", 0, 8, 1, "outside its tensor"),
        (b"\xff", 0, 3, 4, "out of range"),
        (b"\xff", 0, 2**32 - 1, 2**31, "end too early"),
        (b"\xff", 31, 4, 1, "outside its tensor|too early"),
        (b"\x01", 32, 10, 1, "out of range"),
        (b"\x01", 0, 2**32, 1, "out of range"),
        (b"\x03", 0, 10, 1, "after the last code"),
    ],
)
def test_codes_that_cannot_be_right_are_refused(
    codes: bytes, parameter: int, size: int, count: int, fault: str
) -> None:
    with pytest.raises(FrameError, match=fault):
        codec.rice_decode(np.frombuffer(codes, dtype=np.uint8), parameter=parameter, size=size, count=count)


@settings(max_examples=500, deadline=None)
@given(
    codes=st.binary(max_size=64),
    parameter=st.integers(0, 33),
    size=st.integers(0, 300),
    count=st.integers(0, 300),
)
def test_any_bytes_give_increasing_positions_in_range_or_a_frame_error(
    codes: bytes, parameter: int, size: int, count: int
) -> None:
    stream = np.frombuffer(codes, dtype=np.uint8)
    try:
        positions, used = codec.rice_decode(stream, parameter=parameter, size=size, count=count)
    except FrameError:
        return
    assert used <= len(codes)
    assert positions.size == count
    assert (np.diff(positions.astype(np.int64), prepend=-1, append=size) > 0).all()


# ---- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.uint32])
@patiently
@given(count=st.integers(0, 100), seed=st.integers(0, 100))
def test_byte_planes_put_like_bytes_side_by_side_and_back(dtype: type, count: int, seed: int) -> None:
    word = np.dtype(dtype)
    words = np.random.default_rng(seed).integers(0, 256, count * word.itemsize, dtype=np.uint8).view(word)
    planes = codec.split_planes(words)
    np.testing.assert_array_equal(planes, words.view(np.uint8).reshape(-1, word.itemsize).T)
    again = np.zeros(count, dtype=np.uint32)
    for byte, plane in enumerate(planes):
        codec.put_plane(plane, again, byte)
    np.testing.assert_array_equal(again, words.view(f"u{word.itemsize}"))
    at_once = np.full(count, 7, dtype=np.uint32)
    codec.join_planes(planes.reshape(-1), at_once, word.itemsize)
    np.testing.assert_array_equal(at_once, again)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@patiently
@given(data=st.data())
def test_differences_of_any_two_patterns_are_undone(dtype: type, data: st.DataObject) -> None:
    pairs: NDArray[Any] = data.draw(hnp.arrays(np.uint32, (2, 40), elements=patterns)).astype(dtype)
    words, base = np.ascontiguousarray(pairs[0]), np.ascontiguousarray(pairs[1])
    coding, shift = (Coding.LOSSLESS, 0) if dtype is np.uint32 else (Coding.BF16, 16)
    near: Bits = base.astype(np.uint32) << np.uint32(shift)
    # A NaN would be made quiet on its way to bf16.
    near[(near & 0x7FFFFFFF) > 0x7F800000] = 0
    differences = codec.difference(words, (near >> shift).astype(dtype))
    np.testing.assert_array_equal(values_of(differences, near, coding), words.astype(np.uint32) << shift)


def test_difference_counts_the_floats_in_between_and_has_its_sign_lowest() -> None:
    one = floats(1.0)
    near = np.nextafter(np.float32(1), np.float32(2)).reshape(1).view(np.uint32)
    assert codec.difference(near, one).tolist() == [2]
    assert codec.difference(one, near).tolist() == [1]
    assert codec.difference(one, one).tolist() == [0]


@patiently
@given(bits_arrays)
def test_bf16_is_the_nearest_of_its_two_neighbours_and_even_in_a_tie(bits: Bits) -> None:
    rounded = values_of(codec.bf16(bits), None, Coding.BF16)
    for value, got in zip(bits.tolist(), rounded.tolist(), strict=True):
        if value & 0x7FFFFFFF > 0x7F800000:
            assert got & 0x7FFFFFFF > 0x7F800000
            continue
        low = value & 0xFFFF0000
        rest = value & 0xFFFF
        up = rest > 0x8000 or (rest == 0x8000 and low & 0x10000 != 0)
        assert got == low + (0x10000 if up else 0)


finite = hnp.arrays(
    np.float32, 30, elements=st.floats(-(2.0**100), 2.0**100, width=32, allow_nan=False, allow_subnormal=False)
)


@patiently
@given(finite, finite)
def test_int8_steps_are_within_half_a_step_and_as_numpy_would_round(
    values: np.ndarray[tuple[int], np.dtype[np.float32]], base: np.ndarray[tuple[int], np.dtype[np.float32]]
) -> None:
    steps, scale = codec.steps_of(values.view(np.uint32), base.view(np.uint32))
    moved = values - base
    expected = np.float32(np.abs(moved).max() / np.float32(127))
    assert scale == expected
    quotient = np.rint(moved / expected) if expected else np.zeros_like(moved)
    np.testing.assert_array_equal(np.where(np.signbit(base), -steps, steps), np.clip(quotient, -127, 127))
    decoded = values_of(steps, base.view(np.uint32), Coding.INT8, scale).view(np.float32)
    np.testing.assert_array_equal(decoded, base + np.clip(quotient, -127, 127).astype(np.float32) * expected)


def test_int8_rounds_half_a_step_to_even() -> None:
    base = floats(0, 0, 0, 0, 0)
    steps, scale = codec.steps_of(floats(127, 0.5, 1.5, 2.5, -0.5), base)
    assert (scale, steps.tolist()) == (1.0, [127, 0, 2, 2, 0])


def test_int8_steps_point_away_from_zero_whatever_the_sign() -> None:
    steps, _ = codec.steps_of(floats(2.0, -2.0), floats(1.0, -1.0))
    assert steps.tolist() == [127, 127]


def test_int8_without_any_difference_has_no_step() -> None:
    steps, scale = codec.steps_of(floats(1, 2), floats(1, 2))
    assert (scale, steps.tolist()) == (0.0, [0, 0])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_int8_refuses_a_difference_that_is_not_finite(value: float) -> None:
    with pytest.raises(FrameError, match="NaN or infinite"):
        codec.steps_of(floats(value, 1), floats(-3e38, 1))


@pytest.mark.parametrize("scale", [np.nan, np.inf, -1.0])
def test_int8_refuses_a_scale_that_is_no_size(scale: float) -> None:
    with pytest.raises(FrameError, match="NaN or infinite"):
        values_of(np.array([1], dtype=np.int8), floats(1), Coding.INT8, scale)


@pytest.mark.parametrize("coding", list(Coding))
@patiently
@given(case=position_sets, seed=st.integers(0, 2**32 - 1), based=st.booleans())
def test_tensor_is_expanded_in_place(case: tuple[int, Positions], seed: int, based: bool, coding: Coding) -> None:
    size, positions = case
    rng = np.random.default_rng(seed)
    base = rng.standard_normal(size, dtype=np.float32).view(np.uint32) if based or coding is Coding.INT8 else None
    width = {Coding.LOSSLESS: 2**32, Coding.BF16: 2**16, Coding.INT8: 2**8}[coding]
    words = rng.integers(0, width, positions.size, dtype=np.uint64).astype(np.uint32)
    bits = np.zeros(size, dtype=np.uint32)
    bits[size - positions.size :] = words
    codec.expand(bits, count=positions.size, mask=mask_of(positions, size), base=base, coding=coding, scale=0.5)
    expected = np.zeros(size, dtype=np.uint32)
    near = None if base is None else base[positions]
    expected[positions] = values_of(words, near, coding, 0.5)
    np.testing.assert_array_equal(bits, expected)


def test_expansion_needs_as_many_words_as_the_mask_keeps() -> None:
    mask = mask_of(np.array([1, 2], dtype=np.uint32), 4)
    for count in (0, 1, 3, 5):
        with pytest.raises(FrameError, match="out of range"):
            codec.expand(np.zeros(4, np.uint32), count=count, mask=mask, base=None, coding=Coding.LOSSLESS)
    with pytest.raises(FrameError, match="out of range"):
        codec.expand(np.zeros(4, np.uint32), count=2, mask=mask, base=None, coding=Coding.INT8)


# ---- sums over updates -----------------------------------------------------------------------------------------------


class Listed(NamedTuple):
    """Some entries of a stretch of a model."""

    first: int
    size: int
    positions: Positions
    values: FloatArray
    base: FloatArray


def _listed(size: int, first: int, density: float, seed: int) -> Listed:
    rng = np.random.default_rng(seed)
    places = np.flatnonzero(rng.random(size) < density)
    values = rng.standard_normal(places.size).astype(np.float32) * (rng.random(places.size) < 0.8)
    base = rng.standard_normal(size).astype(np.float32) * (rng.random(size) < 0.7)
    return Listed(first, size, (places + first).astype(np.uint32), values.astype(np.float32), base.astype(np.float32))


listed_entries = st.builds(
    _listed,
    st.integers(0, 500),
    st.sampled_from([0, 1, 7_000, 2**32 - 501]),
    st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    st.integers(0, 2**32 - 1),
)


@patiently
@given(listed_entries, st.floats(0, 1e6))
def test_entries_are_added_to_sums_in_double_precision(listed: Listed, weight: float) -> None:
    sums = np.linspace(-1.0, 1.0, listed.size)
    expected = sums.copy()
    expected[listed.positions - np.uint32(listed.first)] += listed.values.astype(np.float64) * weight
    codec.add_entries(listed.positions, listed.values, first=listed.first, weight=weight, sums=sums)
    np.testing.assert_array_equal(sums, expected)


@pytest.mark.parametrize("position", [0, 9, 15, 2**32 - 1])
def test_entries_outside_the_stretch_are_refused(position: int) -> None:
    positions, values = np.array([10, position], dtype=np.uint32), np.ones(2, dtype=np.float32)
    sums, guarded = np.zeros(7), slice(1, 6)
    with pytest.raises(FrameError, match="outside its tensor"):
        codec.add_entries(positions, values, first=10, weight=1.0, sums=sums[guarded])
    assert sums.tolist() == [0, 1, 0, 0, 0, 0, 0]
    row = np.zeros(7)
    with pytest.raises(FrameError, match="outside its tensor"):
        codec.scatter_changes(
            positions,
            values,
            np.array([0, 2]),
            base=np.zeros(5, dtype=np.float32),
            first=10,
            columns=np.arange(5, dtype=np.int32),
            matrix=row[guarded].reshape(1, 5),
        )
    assert row.tolist() == [0, 1, 0, 0, 0, 0, 0]


@patiently
@given(listed_entries, st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_changes_are_put_into_their_columns_and_their_squares_summed(listed: Listed, share: float, seed: int) -> None:
    has_column = np.random.default_rng(seed).random(listed.size) < share
    columns = np.where(has_column, np.cumsum(has_column) - 1, -1).astype(np.int32)
    matrix = np.zeros((3, int(has_column.sum())))
    # Nothing in the first row, all entries in the next, and the first half of them in the last.
    half = listed.positions.size // 2
    squares = codec.scatter_changes(
        np.concatenate([listed.positions, listed.positions[:half]]),
        np.concatenate([listed.values, listed.values[:half]]),
        np.array([0, 0, listed.positions.size, listed.positions.size + half]),
        base=listed.base,
        first=listed.first,
        columns=columns,
        matrix=matrix,
    )
    places = (listed.positions - np.uint32(listed.first))[listed.values != 0]
    changes = np.zeros(listed.size)
    changes[places] = listed.values[listed.values != 0].astype(np.float64) - listed.base[places]
    np.testing.assert_array_equal(matrix[1], changes[has_column])
    assert squares[1] == pytest.approx(float((changes**2).sum()), rel=1e-12)
    assert (squares[0], matrix[0].any()) == (0, False)
    beyond = listed.positions[half:] - np.uint32(listed.first)
    changes[beyond] = 0
    np.testing.assert_array_equal(matrix[2], changes[has_column])
    assert squares[2] == pytest.approx(float((changes**2).sum()), rel=1e-12)


def test_ranges_of_files_are_read_to_their_places(tmp_path: Path) -> None:
    handles = []
    for number in range(2):
        path = tmp_path / str(number)
        path.write_bytes((np.arange(10, dtype=np.uint32) + 100 * number).tobytes())
        handles.append(os.open(path, os.O_RDONLY))
    out = np.zeros(6, dtype=np.uint32)
    files = np.array([handles[1], handles[0], handles[0]], dtype=np.int32)
    offsets, sizes, places = np.array([[8, 4, 32], [3, 0, 2], [2, 0, 0]], dtype=np.int64)
    try:
        codec.read_ranges(files, offsets, sizes, places, out)
        assert out.tolist() == [8, 9, 102, 103, 104, 0]
        with pytest.raises(OSError, match="shorter than what was written"):
            codec.read_ranges(files, offsets + 12, sizes, places, out)
    finally:
        for handle in handles:
            os.close(handle)


@patiently
@given(listed_entries, st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_squares_of_what_is_not_kept_are_summed(listed: Listed, share: float, seed: int) -> None:
    kept = (np.flatnonzero(np.random.default_rng(seed).random(listed.size) < share) + listed.first).astype(np.uint32)
    found = codec.missing_square(Sparse(listed.positions, listed.values.view(np.uint32)), kept)
    missing = listed.values[~np.isin(listed.positions, kept)].astype(np.float64)
    assert found == pytest.approx(float((missing**2).sum()), rel=1e-12)


@patiently
@given(listed_entries, st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_squares_at_positions_are_summed(listed: Listed, share: float, seed: int) -> None:
    chosen = np.flatnonzero(np.random.default_rng(seed).random(listed.size) < share).astype(np.uint32)
    found = codec.square_at(listed.base, chosen)
    assert found == pytest.approx(float((listed.base[chosen].astype(np.float64) ** 2).sum()), rel=1e-12)


def test_a_square_outside_the_tensor_is_refused() -> None:
    with pytest.raises(FrameError, match="outside its tensor"):
        codec.square_at(np.ones(3, dtype=np.float32), np.array([0, 3], dtype=np.uint32))


@pytest.mark.parametrize("size", [0, 1, 2, 7, 8, 9, 23, 8191, 8192, 8193, 20_000])
def test_squares_of_changes_are_added_in_the_order_of_einsum(size: int) -> None:
    rng = np.random.default_rng(size)
    a, b = (rng.standard_normal(size + 3, dtype=np.float32) for _ in range(2))
    bounds, owners = np.array([0, 3, 3, size + 3], dtype=np.int64), np.array([1, 0, 1], dtype=np.int32)
    sums = np.zeros(2)
    codec.change_squares(a, b, bounds, owners, sums)
    moved = a.astype(np.float64) - b
    expected = _in_order_of_einsum(moved[:3]) + _in_order_of_einsum(moved[3:])
    assert sums.tolist() == [0.0, expected]
    assert expected == pytest.approx(float(np.einsum("i,i->", moved, moved)), rel=1e-12)


def _in_order_of_einsum(values: NDArray[np.float64]) -> float:
    """Parts of 8192 entries; in each, even and odd ones apart, and of eight the last two first."""
    total = 0.0
    for first in range(0, values.size, 8192):
        part = values[first : first + 8192]
        whole = part.size // 8 * 8
        lanes = [0.0, 0.0]
        for lane in range(2):
            eights = part[:whole].reshape(-1, 4, 2)[:, ::-1, lane].reshape(-1)
            for value in [*eights.tolist(), *part[whole + lane :: 2].tolist()]:
                lanes[lane] += value * value
        total += lanes[0] + lanes[1]
    return total


@patiently
@given(listed_entries, st.lists(st.integers(0, 500), max_size=6))
def test_products_are_those_of_each_stretch(listed: Listed, cuts: list[int]) -> None:
    a = np.zeros(listed.size, dtype=np.float32)
    a[listed.positions - np.uint32(listed.first)] = listed.values
    starts = np.array([0, *sorted(min(cut, a.size) for cut in cuts), a.size], dtype=np.int64)
    found, is_finite = codec.products(a, listed.base, starts)
    assert is_finite
    for row, start, stop in zip(found, starts[:-1], starts[1:], strict=True):
        x, y = a[start:stop].astype(np.float64), listed.base[start:stop].astype(np.float64)
        sums = [((x - y) ** 2).sum(), (x * x).sum(), (y * y).sum(), (x * y).sum()]
        assert row[:4] == pytest.approx(sums, rel=1e-12, abs=1e-12)
        assert row[4:].tolist() == [np.count_nonzero(x), np.count_nonzero(y), np.count_nonzero(x * y)]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", range(7))
def test_products_notice_what_is_not_finite_wherever_it_is(value: float, place: int) -> None:
    a, b = np.ones(7, dtype=np.float32), np.ones(7, dtype=np.float32)
    a[place] = value
    starts = np.array([0, 6, 7], dtype=np.int64)
    assert not codec.products(a, b, starts)[1]
    assert codec.products(b, a, starts)[1]


# ---- the library -----------------------------------------------------------------------------------------------------


def test_codec_path_is_absolute_and_exists() -> None:
    assert native.codec_path().is_absolute()
    assert native.codec_path().is_file()


def test_missing_codec_is_reported_with_the_command_that_builds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "CODEC_NAME", "libnot_built.so")
    with pytest.raises(
        ArtifactError, match=r"wire codec libnot_built\.so is not part of this installation.*make setup"
    ):
        native.codec_path()


def test_codec_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = codec.VERSION
    monkeypatch.setattr(codec, "VERSION", 999)
    codec._library.cache_clear()
    with pytest.raises(
        ArtifactError, match=f"version {found} of the wire codec, this sparsyedge needs 999; run `make setup`"
    ):
        codec.count_nonzero(floats(1))


def binutil(*command: str) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed; it comes with the compiler (package binutils)")
    return subprocess.run([*command, str(native.codec_path())], capture_output=True, text=True, check=True).stdout


def test_library_exports_what_python_calls_and_nothing_else() -> None:
    symbols = {line.split()[-1] for line in binutil("nm", "-D", "--defined-only").splitlines()}
    assert symbols == {*codec._ARGUMENTS, "se_codec_version"}


def test_library_needs_neither_python_nor_the_cpp_runtime() -> None:
    needed = [line for line in binutil("readelf", "-d").splitlines() if "(NEEDED)" in line]
    assert needed
    assert not [line for line in needed if "python" in line or "stdc++" in line]
