"""Values as integers: nothing overflows, nothing is biased, nothing that does not fit is taken."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.privacy.fixed_point import FixedPoint, pack, unpack


@given(value_bits=st.integers(2, 24), devices=st.integers(1, 100_000))
def test_the_largest_integers_of_a_full_cohort_stay_below_the_modulus(value_bits: int, devices: int) -> None:
    scale = FixedPoint(clip=1.0, value_bits=value_bits, cap=1, devices=devices)
    assert devices * scale.top < 1 << (8 * scale.word_bytes)
    assert scale.word_bytes <= np.dtype(scale.dtype).itemsize


@pytest.mark.parametrize("devices", [1, 10, 256, 257])
def test_a_full_cohort_at_the_clip_sums_to_the_clip(devices: int) -> None:
    scale = FixedPoint(clip=0.5, value_bits=16, cap=100, devices=devices)
    values, random = np.array([9.0, -9.0, 0.5]), np.random.default_rng(0)
    total = np.zeros(4, scale.dtype)
    for _ in range(devices):
        total += scale.encode(values, 1000, random)
    sent = unpack(pack(total, scale.word_bytes), scale, 4)
    mean, weight = scale.decode(sent, devices)
    assert weight == 100 * devices
    assert mean == pytest.approx([0.5, -0.5, 0.5], abs=2 * 0.5 / scale.top)


def test_a_weighted_mean_comes_back_without_bias() -> None:
    devices = 2000
    scale = FixedPoint(clip=1.0, value_bits=8, cap=50, devices=devices)
    random = np.random.default_rng(1)
    values = random.uniform(-1, 1, (devices, 3))
    weights = random.integers(1, 51, devices)
    total = np.zeros(4, scale.dtype)
    for own, weight in zip(values, weights, strict=True):
        total += scale.encode(own, int(weight), random)
    mean, weight = scale.decode(total, devices)
    assert weight == weights.sum()
    # Rounding errs by at most half a step each, independently: 6 deviations of their mean.
    deviation = 2 / scale.top / 2 / np.sqrt(devices) * 50 * devices / weights.sum()
    assert np.abs(mean - (values * weights[:, None]).sum(0) / weights.sum()).max() < 6 * deviation


def test_a_weight_beyond_the_cap_counts_as_the_cap() -> None:
    scale = FixedPoint(clip=1.0, value_bits=8, cap=50, devices=2)
    assert scale.encode(np.zeros(1), 10**9, np.random.default_rng(0))[-1] == 50


def test_a_value_that_is_no_number_and_a_weight_of_nothing_are_refused() -> None:
    scale = FixedPoint(clip=1.0, value_bits=8, cap=50, devices=2)
    with pytest.raises(SecurityError, match="not a number"):
        scale.encode(np.array([1.0, np.nan]), 1, np.random.default_rng(0))
    with pytest.raises(SecurityError, match="weight 0"):
        scale.encode(np.zeros(2), 0, np.random.default_rng(0))


def test_a_cap_that_does_not_fit_a_word_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 255"):
        FixedPoint(clip=1.0, value_bits=8, cap=256, devices=2)


@pytest.mark.parametrize("size", [0, 11, 13])
def test_a_payload_of_another_size_is_refused(size: int) -> None:
    scale = FixedPoint(clip=1.0, value_bits=16, cap=50, devices=100)
    assert scale.word_bytes == 3
    with pytest.raises(SecurityError, match=f"has {size} bytes"):
        unpack(bytes(size), scale, 4)


def test_a_sum_that_weighs_more_than_its_devices_may_is_refused() -> None:
    scale = FixedPoint(clip=1.0, value_bits=8, cap=50, devices=10)
    with pytest.raises(SecurityError, match="weighs 101"):
        scale.decode(np.array([5, 101], np.uint32), 2)
