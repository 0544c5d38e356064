"""Samples as stored, samples as a training step needs them, and the one place that checks data.

Images stay uint8 until a batch needs them: 500 CIFAR images cost 1.5 MB instead of 6, and a Pi has better uses for the
rest.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.errors import DataError

__all__ = ["MAX_CLASS_NAME", "Dataset", "Samples", "check", "check_classes"]

MAX_CLASS_NAME = 200
"""The longest class name, in characters."""

DIGEST_SAMPLES = 1024

# ToTensor, then Normalize(0.5, 0.5), in float32 like torchvision. There are 256 values, so a table gives the same bits.
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

    def digest(self) -> str:
        """A hash of all samples in order; reads them once, in pieces."""
        digest = hashlib.sha256(f"{self.x.dtype.str} {self.x.shape} {self.y.dtype.str}".encode())
        for array in (self.x, self.y):
            for start in range(0, len(array), DIGEST_SAMPLES):
                digest.update(array[start : start + DIGEST_SAMPLES].tobytes())
        return digest.hexdigest()

    def none(self) -> Samples:
        """No samples, of the same shape."""
        return Samples(self.x[:0].copy(), self.y[:0].copy())

    def take(self, indices: NDArray[np.int64]) -> Samples:
        """Only these samples, in the order of `indices`; copies them so that the rest can be freed."""
        return Samples(self.x[indices], self.y[indices])

    def batch(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """One step's input (batch, channels, height, width), normalised to -1..1, and its labels (batch,)."""
        stored = self.x[indices]
        if stored.dtype == np.uint8:
            return _NORMALISED[stored], self.y[indices]
        x = stored.astype(np.float32, copy=False)
        return x / np.float32(32768) if stored.dtype == np.int16 else x, self.y[indices]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set with its official split; `name` is the user's name for it, for messages and records."""

    name: str
    train: Samples
    test: Samples
    """Empty if the data has no test part: a device trains without one."""
    classes: int
    names: tuple[str, ...] = ()
    """The class names in the order of their numbers; empty if the data has none."""


def check(dataset: Dataset, *, train_only: bool = False) -> None:
    """Refuse data that would train to nonsense: empty, misshapen, not finite, not scaled, or labels out of range.

    With `train_only`, skips the test part and accepts a single class: a device may have seen no other.
    """
    fewest = 1 if train_only else 2
    if dataset.classes < fewest:
        raise DataError(
            f"data set {dataset.name} has {dataset.classes} classes, at least {fewest} are needed to train on"
        )
    _check_names(dataset)
    _check_part("train", dataset.train, dataset)
    if train_only:
        return
    if len(dataset.test) == 0:
        raise DataError(
            f"the test part of data set {dataset.name} is empty, and the model is evaluated on it; add x_test and "
            "y_test to an .npz, or test/CLASS/ to a folder of images (only a device does without)"
        )
    _check_part("test", dataset.test, dataset)
    for what, train, test in (
        ("shape", dataset.train.x.shape[1:], dataset.test.x.shape[1:]),
        ("type", dataset.train.x.dtype, dataset.test.x.dtype),
    ):
        if train != test:
            raise DataError(
                f"data set {dataset.name} has train samples of {what} {train} and test samples of {what} {test}; "
                f"a model takes one {what}: convert one of them"
            )


def _check_names(dataset: Dataset) -> None:
    names = dataset.names
    if names and len(names) != dataset.classes:
        raise DataError(
            f"data set {dataset.name} has {dataset.classes} classes and {len(names)} names; give each class one name"
        )
    for name in names:
        if not (isinstance(name, str) and name.isprintable() and 0 < len(name) <= MAX_CLASS_NAME):
            raise DataError(
                f"data set {dataset.name} has a class called {str(name)[:MAX_CLASS_NAME]!r}; a name has 1 to "
                f"{MAX_CLASS_NAME} printable characters: rename it"
            )
    spellings = Counter(unicodedata.normalize("NFC", name) for name in names)
    if twice := [name for name, count in spellings.items() if count > 1]:
        raise DataError(f"data set {dataset.name} calls two classes {twice[0]!r}; rename one, or make them one class")


def _check_part(part: str, samples: Samples, dataset: Dataset) -> None:
    where = f"{part} part of data set {dataset.name}"
    _check_shapes(samples, where)
    _check_labels(samples.y, dataset, where)
    _check_finite(samples.x, where)
    _check_scale(samples.x, where)


def _check_shapes(samples: Samples, where: str) -> None:
    x, y = samples.x, samples.y
    if x.dtype not in (np.uint8, np.int16, np.float32):
        raise DataError(
            f"x in the {where} is {x.dtype}; allowed are uint8 (0..255), int16 (sound) and float32 (already normalised)"
        )
    if x.ndim != 4 or y.ndim != 1:
        raise DataError(
            f"the {where} has x of shape {x.shape} and y of shape {y.shape}; "
            "expected (samples, channels, height, width) and (samples,): reshape them (labels that are one-hot "
            "become numbers by y.argmax(axis=1))"
        )
    if len(x) != len(y):
        raise DataError(f"the {where} has {len(x)} samples in x and {len(y)} labels in y; give one label per sample")
    if x.size == 0:
        raise DataError(f"the {where} is empty: x has shape {x.shape}; give at least one sample")


def _check_labels(y: NDArray[np.int64], dataset: Dataset, where: str) -> None:
    classes = dataset.classes
    wrong = (y < 0) | (y >= classes)
    if wrong.any():
        first = int(np.argmax(wrong))
        remedy = f"give it a name, there are {classes}" if dataset.names else "renumber the labels from 0"
        raise DataError(
            f"label {y[first]} of sample {first} in the {where} is out of range; allowed are 0..{classes - 1}: {remedy}"
        )


def check_classes(dataset: Dataset) -> None:
    """Refuse to partition a data set that lacks a class: no device would train that output. One device may lack one."""
    # Labels may be arbitrary numbers, and the largest sets the class count: use memory per sample, not per class.
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


def _check_scale(x: NDArray[Any], where: str) -> None:
    """Refuse pixels of 0..255 stored as float: nothing scales float, and steps of that size learn nothing."""
    if x.dtype != np.float32:
        return
    low, high = float(x.min()), float(x.max())
    if low < 0 or not 2 < high <= 255:
        return
    # Resized pixels are no longer whole numbers, but still come near 255.
    if high > 200 or _holds_whole_numbers(x):
        scale = (
            "x / 127.5 - 1" if high > 100 else f"x / {high / 2:g} - 1 where {high:g} is the largest value there can be"
        )
        raise DataError(
            f"x in the {where} is float32 from {low:g} to {high:g}, which looks like pixels, and nothing scales "
            f"float32; save it as uint8 (samples, height, width, channels), or scale it to -1..1 with {scale}"
        )


def _holds_whole_numbers(x: NDArray[Any]) -> bool:
    # Block by block: a copy of all samples would not fit on a small device.
    return all(bool((block == np.rint(block)).all()) for block in np.array_split(x, len(x) // 256 + 1))
