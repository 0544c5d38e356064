"""What a job's steps are told: the shift of logits by the device's classes, and rounds that keep inputs whole."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sparsyedge.edge.model.methods import make_method
from sparsyedge.edge.training.job_inputs import label_shift


def test_the_shift_is_the_log_of_a_classes_frequency_beside_the_most_frequent_one() -> None:
    labels = np.array([0] * 9 + [1] * 4 + [3])
    shift = label_shift(labels, 4, 1.0)
    np.testing.assert_allclose(shift, np.log(np.array([10, 5, 1, 2]) / 10), rtol=1e-6)
    np.testing.assert_allclose(label_shift(labels, 4, 0.5), shift / 2, rtol=1e-6)
    assert shift.dtype == np.float32


@pytest.mark.parametrize("samples", [1, 500, 1_000_000])
def test_a_class_that_a_device_lacks_is_shifted_as_if_it_had_one_sample(samples: int) -> None:
    shift = label_shift(np.zeros(samples, dtype=np.int64), 2, 1.0)
    assert shift[0] == 0
    assert shift[1] == pytest.approx(-math.log(samples + 1))


def test_classes_that_are_even_are_not_shifted_at_all() -> None:
    shift = label_shift(np.arange(100) % 10, 10, 1.0)
    assert not shift.any()


@pytest.mark.parametrize("name", ["sparsyfed", "fixed-mask", "auto-beta"])
def test_a_warm_up_covers_its_rounds_and_no_others(name: str) -> None:
    warming, plain = make_method(name, activation_warmup=3), make_method(name)
    assert [warming.keeps_inputs(number) for number in range(1, 6)] == [True, True, True, False, False]
    assert not any(plain.keeps_inputs(number) for number in range(1, 6))
    assert (warming.warms_up, plain.warms_up) == (True, False)
