from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sparsyedge.edge.data import Dataset, Samples, check
from sparsyedge.edge.errors import DataError


def images(count: int, shape: tuple[int, int, int] = (3, 4, 4)) -> Samples:
    rng = np.random.default_rng(7)
    x = rng.integers(0, 256, size=(count, *shape), dtype=np.uint8)
    return Samples(x, np.arange(count, dtype=np.int64) % 3)


def normalised(count: int) -> Samples:
    x, y = images(count).batch(np.arange(count))
    return Samples(x, y)


GOOD = Dataset("toy", images(6), images(3), classes=3)


def test_batch_is_normalised_as_totensor_and_normalize_would_do() -> None:
    every_value = Samples(np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16), np.zeros(1, dtype=np.int64))
    x, _ = every_value.batch(np.array([0]))
    as_tensor = every_value.x.astype(np.float32) / np.float32(255)
    np.testing.assert_array_equal(x, (as_tensor - np.float32(0.5)) / np.float32(0.5))
    assert x.dtype == np.float32
    assert (x.min(), x.max()) == (-1.0, 1.0)


def test_batch_follows_the_order_of_its_indices() -> None:
    samples = images(5)
    x, y = samples.batch(np.array([4, 0, 4]))
    np.testing.assert_array_equal(y, samples.y[[4, 0, 4]])
    np.testing.assert_array_equal(x[0], x[2])
    assert x.shape == (3, 3, 4, 4)


def test_float_samples_pass_unchanged() -> None:
    samples = normalised(4)
    x, _ = samples.batch(np.array([2, 1]))
    np.testing.assert_array_equal(x, samples.x[[2, 1]])


def test_a_share_keeps_uint8_and_does_not_hold_on_to_the_whole() -> None:
    whole = images(100)
    share = whole.take(np.arange(10))
    assert len(share) == 10
    assert share.x.dtype == np.uint8
    assert share.x.base is None
    assert share.x.nbytes == 10 * 3 * 4 * 4


def test_a_good_data_set_passes_the_check() -> None:
    check(GOOD)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused_with_its_sample(value: float) -> None:
    train = normalised(6)
    train.x[4, 1, 0, 0] = value
    with pytest.raises(DataError, match=rf"sample 4 in the train part of data set toy holds {value}.*1 of 6"):
        check(Dataset("toy", train, normalised(3), classes=3))


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_out_of_range_is_refused_with_its_sample_and_the_range(label: int) -> None:
    test = images(3)
    test.y[1] = label
    with pytest.raises(DataError, match=rf"label {label} of sample 1 in the test part of data set toy.*0\.\.2"):
        check(replace(GOOD, test=test))


def test_an_empty_part_is_refused() -> None:
    with pytest.raises(DataError, match="test part of data set toy is empty"):
        check(replace(GOOD, test=images(0)))


def test_more_samples_than_labels_are_refused() -> None:
    with pytest.raises(DataError, match="6 samples in x and 5 labels in y"):
        check(replace(GOOD, train=Samples(images(6).x, images(5).y)))


def test_a_missing_axis_is_refused_with_both_shapes() -> None:
    flat = Samples(images(6).x.reshape(6, -1), images(6).y)
    with pytest.raises(DataError, match=r"\(6, 48\).*\(samples, channels, height, width\)"):
        check(replace(GOOD, train=flat))


def test_parts_of_different_sizes_of_image_are_refused() -> None:
    with pytest.raises(DataError, match=r"\(3, 4, 4\).*\(3, 5, 5\)"):
        check(replace(GOOD, test=images(3, (3, 5, 5))))


def test_another_number_type_is_refused() -> None:
    doubles = Samples(normalised(6).x.astype(np.float64), images(6).y)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="float64"):
        check(replace(GOOD, train=doubles))


def test_a_single_class_is_refused() -> None:
    with pytest.raises(DataError, match="1 classes"):
        check(replace(GOOD, classes=1))


def pixels_as_float(high: float, *, whole: bool) -> Samples:
    x = np.linspace(0, high, 6 * 48, dtype=np.float32).reshape(6, 3, 4, 4)
    return Samples(np.rint(x) if whole else x, images(6).y)


@pytest.mark.parametrize(("high", "whole"), [(255, True), (255, False), (240, False), (16, True)])
def test_pixels_stored_as_float_are_refused_with_what_to_do(high: float, whole: bool) -> None:
    with pytest.raises(DataError, match=rf"float32 from 0 to {high}, which looks like pixels.*-1\.\.1 with x /"):
        check(replace(GOOD, train=pixels_as_float(high, whole=whole)))


@pytest.mark.parametrize("high", [1, 2, 16, 1000])
def test_other_numbers_are_used_as_they_are(high: float) -> None:
    check(replace(GOOD, train=pixels_as_float(high, whole=False), test=normalised(3)))


def test_names_that_are_not_as_many_as_classes_are_refused() -> None:
    with pytest.raises(DataError, match="3 classes and 2 names"):
        check(replace(GOOD, names=("a", "b")))
