"""Paired differences and their intervals."""

import math

import pytest

from sparsyedge.benchmarks.common.paired import paired_difference


def test_interval_is_students_t() -> None:
    interval = paired_difference([3.0, 5.0, 7.0], [2.0, 3.0, 4.0])
    # Differences 1, 2, 3: mean 2, standard deviation 1, and t = 4.303 with two degrees of freedom.
    assert (interval.mean, interval.count) == (2.0, 3)
    assert interval.low == pytest.approx(2 - 4.3027 / math.sqrt(3), abs=1e-3)
    assert interval.high == pytest.approx(2 + 4.3027 / math.sqrt(3), abs=1e-3)
    assert interval.has_zero


def test_what_pairs_share_does_not_widen_the_interval() -> None:
    interval = paired_difference([10.1, 50.1, 90.1], [10.0, 50.0, 90.0])
    assert interval.low == pytest.approx(interval.high, abs=1e-9)
    assert not interval.has_zero


def test_a_single_pair_tells_nothing_about_the_spread() -> None:
    interval = paired_difference([1.0], [2.0])
    assert (interval.mean, interval.low, interval.high) == (-1.0, -math.inf, math.inf)
