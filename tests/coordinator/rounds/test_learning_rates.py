"""The learning rate of each round."""

from __future__ import annotations

import itertools
import math

import pytest

from sparsyedge.coordinator.rounds.learning_rates import learning_rate


def test_the_last_round_has_exactly_the_end_rate() -> None:
    assert learning_rate(700, 700, start=0.5, end=0.01) == pytest.approx(0.01, rel=1e-12)


def test_the_first_round_is_already_a_little_decayed() -> None:
    assert learning_rate(1, 700, start=0.5, end=0.01) == pytest.approx(0.5 * math.exp(math.log(0.02) / 700))


def test_every_round_falls_by_the_same_factor() -> None:
    rates = [learning_rate(number, 5, start=0.2, end=0.1) for number in range(1, 6)]
    factors = [after / before for before, after in itertools.pairwise(rates)]
    assert factors == pytest.approx([0.5 ** (1 / 5)] * 4)


def test_rates_too_far_apart_for_a_ratio_still_fall_to_almost_nothing() -> None:
    assert 0 < learning_rate(4, 4, start=1000, end=5e-324) < 1e-300


def test_equal_rates_stay_constant() -> None:
    assert {learning_rate(number, 4, start=0.2, end=0.2) for number in range(1, 5)} == {0.2}
