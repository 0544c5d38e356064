"""scikit-learn's handwritten digits, enlarged to the shape of CIFAR: real data without a download."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.data.dataset import Dataset, Samples
from sparsyedge.edge.errors import DataError
from sparsyedge.edge.installation import install_command

__all__ = ["DIGIT_NAMES", "read_digits"]

_CLASSES = 10
DIGIT_NAMES = tuple(map(str, range(_CLASSES)))
_TEST_SAMPLES = 360
_SPLIT_SEED = 1337
_SCALE = 4  # 8x8 -> 32x32
_LARGEST = 16  # the digits are counts of dark pixels in 4x4 cells


def read_digits() -> Dataset:
    """1,437 train and 360 test digits as (3, 32, 32) images, always split the same way."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError(
            "data set digits comes with scikit-learn, which is not installed; "
            f"run `{install_command('demo')}` or choose another data set"
        ) from error
    cells, labels = load_digits(return_X_y=True)
    x = _enlarge(cells.reshape(-1, 8, 8))
    y = labels.astype(np.int64)
    test = _stratified_choice(y)
    train = np.setdiff1d(np.arange(len(y)), test)
    samples = Samples(x, y)
    return Dataset("digits", samples.take(train), samples.take(test), _CLASSES, DIGIT_NAMES)


def _enlarge(cells: NDArray[Any]) -> NDArray[np.uint8]:
    grey = np.rint(cells * (255 / _LARGEST)).astype(np.uint8)
    large = grey.repeat(_SCALE, axis=1).repeat(_SCALE, axis=2)
    return np.repeat(large[:, np.newaxis], 3, axis=1)


def _stratified_choice(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sorted indices of the test samples: each class in proportion, rounded by largest remainder."""
    rng = np.random.default_rng(_SPLIT_SEED)
    quotas = np.bincount(labels, minlength=_CLASSES) * _TEST_SAMPLES / len(labels)
    counts = np.floor(quotas).astype(np.int64)
    largest_remainders = np.argsort(counts - quotas, kind="stable")
    counts[largest_remainders[: _TEST_SAMPLES - counts.sum()]] += 1
    chosen = [rng.permutation(np.flatnonzero(labels == each))[:count] for each, count in enumerate(counts)]
    return np.sort(np.concatenate(chosen))
