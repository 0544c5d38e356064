"""Samples in the form they are kept in, the form a training step wants, and the one place where data is checked.

Images stay uint8 until a batch asks for them: 500 CIFAR images cost 1.5 MB instead of 6, and a Pi has other uses for
the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.errors import DataError

__all__ = ["Dataset", "Samples", "check", "check_classes"]

# ToTensor, then Normalize(0.5, 0.5), in float32 as torchvision does it; 256 values, so a table gives the same bits.
_NORMALISED = (np.arange(256, dtype=np.float32) / np.float32(255) - np.float32(0.5)) / np.float32(0.5)


@dataclass(frozen=True, eq=False)
class Samples:
    """Images and their labels, in one order.

    `x` is (samples, channels, height, width): uint8 in 0..255, int16 sound, or float32 that is already normalised.
    `y` is (samples,).
    """

    x: NDArray[np.uint8] | NDArray[np.int16] | NDArray[np.float32]
    y: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.x)

    def take(self, indices: NDArray[np.int64]) -> Samples:
        """These samples alone, in the order of `indices`; a copy, so that the rest can be freed."""
        return Samples(self.x[indices], self.y[indices])

    def batch(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The input (batch, channels, height, width), normalised to -1..1, and the labels (batch,) of one step."""
        stored = self.x[indices]
        if stored.dtype == np.uint8:
            return _NORMALISED[stored], self.y[indices]
        x = stored.astype(np.float32, copy=False)
        return x / np.float32(32768) if stored.dtype == np.int16 else x, self.y[indices]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set with its official split; `name` is what the user called it, for messages and records."""

    name: str
    train: Samples
    test: Samples
    classes: int
    names: tuple[str, ...] = ()
    """What the classes are called, in the order of their numbers; empty where the data does not say."""


def check(dataset: Dataset) -> None:
    """Refuse data that would train to nonsense: empty, misshapen, not finite, or labels outside 0..classes-1."""
    if dataset.classes < 2:
        raise DataError(f"data set {dataset.name} has {dataset.classes} classes, at least 2 are needed to train on")
    for part, samples in (("train", dataset.train), ("test", dataset.test)):
        where = f"{part} part of data set {dataset.name}"
        _check_shapes(samples, where)
        _check_labels(samples.y, dataset.classes, where)
        _check_finite(samples.x, where)
    train_shape, test_shape = dataset.train.x.shape[1:], dataset.test.x.shape[1:]
    if train_shape != test_shape:
        raise DataError(
            f"data set {dataset.name} has train samples of shape {train_shape} and test samples of shape {test_shape}; "
            "a model takes one shape: resize one of them"
        )


def _check_shapes(samples: Samples, where: str) -> None:
    x, y = samples.x, samples.y
    if x.dtype not in (np.uint8, np.int16, np.float32):
        raise DataError(
            f"x in the {where} is {x.dtype}; allowed are uint8 (0..255), int16 (sound) and float32 (already normalised)"
        )
    if x.ndim != 4 or y.ndim != 1:
        raise DataError(
            f"the {where} has x of shape {x.shape} and y of shape {y.shape}; "
            "wanted are (samples, channels, height, width) and (samples,): reshape them"
        )
    if len(x) != len(y):
        raise DataError(f"the {where} has {len(x)} samples in x and {len(y)} labels in y; give one label per sample")
    if x.size == 0:
        raise DataError(f"the {where} is empty: x has shape {x.shape}; give at least one sample")


def _check_labels(y: NDArray[np.int64], classes: int, where: str) -> None:
    wrong = (y < 0) | (y >= classes)
    if wrong.any():
        first = int(np.argmax(wrong))
        raise DataError(
            f"label {y[first]} of sample {first} in the {where} is out of range; allowed are 0..{classes - 1}: "
            "renumber the labels from 0"
        )


def check_classes(dataset: Dataset) -> None:
    """Refuse a data set to be dealt out that lacks a class: an output that no device trains. One device may well."""
    # Labels may be any numbers, and classes as many as the largest says: memory goes with the samples.
    present = np.unique(dataset.train.y)
    if present.size < dataset.classes:
        missing = int(np.argmax(np.append(present, -1) != np.arange(present.size + 1)))
        raise DataError(
            f"class {missing} of data set {dataset.name} has no sample in the train part; each of the classes "
            f"0..{dataset.classes - 1} needs at least one: add samples or renumber the labels"
        )


def _check_finite(x: NDArray[Any], where: str) -> None:
    if x.dtype != np.float32:
        return
    wrong = ~np.isfinite(x).all(axis=(1, 2, 3))
    if wrong.any():
        first = int(np.argmax(wrong))
        value = x[first][~np.isfinite(x[first])][0]
        raise DataError(
            f"sample {first} in the {where} holds {value}, and {int(wrong.sum())} of {len(x)} samples hold NaN or "
            "infinity; only finite values are allowed: drop or repair these samples"
        )
