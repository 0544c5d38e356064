"""Augmentation: the same key, the same batch; what a crop, a flip and a mixture are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sparsyedge.edge.model.training import make_training
from sparsyedge.edge.training.augment import StepKey, augment, background

KEY = StepKey(seed=1, round_number=2, device_id="pi-01", epoch=0, step=3)
LABELS = np.arange(64) % 10


def images(count: int = 64, size: int = 8) -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal((count, 3, size, size), dtype=np.float32)


def changed(x: NDArray[np.float32], key: StepKey = KEY, **options: Any) -> NDArray[np.float32]:
    return augment(make_training(**options), x, LABELS[: len(x)], key, fill=-1.0)[0]


def test_the_same_key_gives_the_same_batch_and_every_part_of_it_another() -> None:
    options = {"crop": 2, "flip": True, "mixup": 0.4}
    others = [
        StepKey(2, 2, "pi-01", 0, 3),
        StepKey(1, 3, "pi-01", 0, 3),
        StepKey(1, 2, "pi-02", 0, 3),
        StepKey(1, 2, "pi-01", 1, 3),
        StepKey(1, 2, "pi-01", 0, 4),
    ]
    batches = {changed(images(), key, **options).tobytes() for key in (KEY, KEY, *others)}
    assert len(batches) == 1 + len(others)


def test_a_flip_mirrors_about_half_of_the_images_and_leaves_the_others() -> None:
    x = images(1000)
    y = augment(make_training(flip=True), x, np.zeros(1000, np.int64), KEY, fill=0.0)[0]
    flipped = [np.array_equal(after, before[..., ::-1]) for before, after in zip(x, y, strict=True)]
    kept = [np.array_equal(after, before) for before, after in zip(x, y, strict=True)]
    assert all(one != other for one, other in zip(flipped, kept, strict=True))
    assert 400 < sum(flipped) < 600


def test_a_crop_is_a_window_of_the_image_with_its_border() -> None:
    x = images()
    padded = np.pad(x, ((0, 0), (0, 0), (2, 2), (2, 2)), constant_values=-1)
    places = set()
    for before, after in zip(padded, changed(x, crop=2), strict=True):
        (place,) = [
            (top, left)
            for top in range(5)
            for left in range(5)
            if np.array_equal(before[:, top : top + 8, left : left + 8], after)
        ]
        places.add(place)
    assert len(places) > 15


def test_the_border_of_pixels_is_black_and_of_other_values_zero() -> None:
    assert background(np.dtype(np.uint8)) == -1
    assert background(np.dtype(np.float32)) == background(np.dtype(np.int16)) == 0


def test_a_mixture_names_the_other_labels_and_the_share_of_its_own() -> None:
    x = images()
    mixed_x, y, mixed = augment(make_training(mixup=0.4), x, LABELS, KEY, fill=0.0)
    assert mixed is not None
    assert np.array_equal(y, LABELS)
    assert np.array_equal(np.sort(mixed.labels), np.sort(LABELS))
    share = np.float32(mixed.share)
    rest = (mixed_x - share * x) / (1 - share)
    found = [int(np.argmin(((x - one) ** 2).sum((1, 2, 3)))) for one in rest]
    assert np.array_equal(LABELS[found], mixed.labels)


def test_numbers_to_predict_are_mixed_like_the_samples() -> None:
    x, targets = images(), np.random.default_rng(1).standard_normal((64, 2)).astype(np.float32)
    _, y, mixed = augment(make_training(mixup=0.4), x, targets, KEY, fill=0.0)
    assert mixed is None
    assert y.shape == targets.shape
    assert not np.array_equal(y, targets)


@pytest.mark.parametrize("alpha", [0.001, 0.1, 0.4, 1.0, 2.0])
def test_shares_follow_the_beta_distribution(alpha: float) -> None:
    training, x = make_training(mixup=alpha), np.zeros((2, 1, 2, 2), np.float32)
    keys = [StepKey(0, 1, "pi", 0, step) for step in range(4000)]
    drawn = [augment(training, x, LABELS[:2], key, fill=0.0)[2] for key in keys]
    shares = np.array([each.share for each in drawn if each is not None])
    assert shares.size == 4000
    assert ((shares >= 0) & (shares <= 1)).all()
    assert abs(shares.mean() - 0.5) < 0.03
    assert abs(shares.var() - 1 / (4 * (2 * alpha + 1))) < 0.01
