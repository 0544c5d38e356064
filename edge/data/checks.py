"""The one place that checks data: whatever passes can be trained on."""

from __future__ import annotations

import logging
import unicodedata
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.data.dataset import AXES, MAX_CLASS_NAME, Dataset, Labels, Samples
from sparsyedge.edge.errors import DataError

__all__ = ["check", "check_classes"]

log = logging.getLogger(__name__)

_IMAGE_AXES = 3


def check(dataset: Dataset, *, train_only: bool = False) -> None:
    """Refuse data that would train to nonsense: empty, misshapen, not finite, not scaled, or labels out of range.

    With `train_only`, skips the test part and accepts a single class: a device may have seen no other.
    """
    fewest = 1 if train_only or dataset.task == "regression" else 2
    if dataset.classes < fewest:
        raise DataError(
            f"data set {dataset.name} has {dataset.classes} {_outputs_word(dataset)}, at least {fewest} are needed to "
            "train on"
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
    _check_same_task(dataset)
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


def _outputs_word(dataset: Dataset) -> str:
    return "outputs" if dataset.task == "regression" else "classes"


def _check_same_task(dataset: Dataset) -> None:
    train, test = dataset.train, dataset.test
    if train.task != test.task:
        raise DataError(
            f"data set {dataset.name} has train labels of {train.y.dtype} and test labels of {test.y.dtype}; integers "
            "are classes and float32 is a regression, and a model learns one of them: convert one"
        )


def _check_names(dataset: Dataset) -> None:
    names, one = dataset.names, "output" if dataset.task == "regression" else "class"
    if names and len(names) != dataset.classes:
        raise DataError(
            f"data set {dataset.name} has {dataset.classes} {_outputs_word(dataset)} and {len(names)} names; give each "
            f"{one} one name"
        )
    for name in names:
        if not (isinstance(name, str) and name.isprintable() and 0 < len(name) <= MAX_CLASS_NAME):
            raise DataError(
                f"data set {dataset.name} has a {one} called {str(name)[:MAX_CLASS_NAME]!r}; a name has 1 to "
                f"{MAX_CLASS_NAME} printable characters: rename it"
            )
    spellings = Counter(unicodedata.normalize("NFC", name) for name in names)
    if twice := [name for name, count in spellings.items() if count > 1]:
        merge = "" if dataset.task == "regression" else ", or make them one class"
        raise DataError(f"data set {dataset.name} calls two {_outputs_word(dataset)} {twice[0]!r}; rename one{merge}")


def _check_part(part: str, samples: Samples, dataset: Dataset) -> None:
    where = f"{part} part of data set {dataset.name}"
    _check_sample_shape(samples.x, where)
    _check_label_shape(samples, where)
    if len(samples.x) != len(samples.y):
        raise DataError(
            f"the {where} has {len(samples.x)} samples in x and {len(samples.y)} labels in y; give one label per sample"
        )
    if samples.x.size == 0:
        raise DataError(f"the {where} is empty: x has shape {samples.x.shape}; give at least one sample")
    if samples.task == "regression":
        _check_targets(samples.y, dataset, where)
    else:
        _check_labels(samples.y, dataset, where)
    _check_finite(samples.x, where)
    _check_scale(samples.x, where)


def _check_sample_shape(x: NDArray[Any], where: str) -> None:
    if x.dtype not in (np.uint8, np.int16, np.float32):
        raise DataError(
            f"x in the {where} is {x.dtype}; allowed are uint8 (0..255), int16 (sound) and float32 (already normalised)"
        )
    axes = x.ndim - 1
    # Pixels are delivered with channels last, which only images have.
    if x.dtype == np.uint8 and axes != _IMAGE_AXES:
        raise DataError(
            f"the {where} has x of uint8 and shape {x.shape}; expected pixels as (samples, {AXES[_IMAGE_AXES]}): "
            "reshape them, or convert what is not an image to float32"
        )
    if axes not in AXES:
        fewer = "x[:, None] makes it one feature per sample" if axes == 0 else "reshape it"
        raise DataError(
            f"the {where} has x of shape {x.shape}; expected (samples, ...) with one to {max(AXES)} axes for each "
            f"sample, as in (samples, features): {fewer}"
        )


def _check_label_shape(samples: Samples, where: str) -> None:
    y = samples.y
    if samples.task == "regression":
        if y.dtype != np.float32 or y.ndim != 2:
            raise DataError(
                f"the {where} has y of {y.dtype} and shape {y.shape}; targets of a regression are float32 of shape "
                "(samples,) or (samples, outputs): convert or reshape them"
            )
    elif y.ndim != 1:
        raise DataError(
            f"the {where} has x of shape {samples.x.shape} and y of shape {y.shape}; expected labels (samples,): "
            "reshape them (labels that are one-hot become numbers by y.argmax(axis=1))"
        )


def _check_targets(y: Labels, dataset: Dataset, where: str) -> None:
    if y.shape[1] != dataset.outputs:
        raise DataError(
            f"the {where} has {y.shape[1]} targets per sample, the data set has {dataset.outputs} outputs; a model has "
            "one number of outputs: give every sample as many targets"
        )
    wrong = ~np.isfinite(y).all(axis=1)
    if wrong.any():
        first = int(np.argmax(wrong))
        value = y[first][~np.isfinite(y[first])][0]
        raise DataError(
            f"the target of sample {first} in the {where} is {value}, and {int(wrong.sum())} of {len(y)} samples have "
            "targets of NaN or infinity; only finite values are allowed: drop or repair these samples"
        )


def _check_labels(y: Labels, dataset: Dataset, where: str) -> None:
    classes = dataset.classes
    wrong = (y < 0) | (y >= classes)
    if wrong.any():
        first = int(np.argmax(wrong))
        remedy = f"give it a name, there are {classes}" if dataset.names else "renumber the labels from 0"
        raise DataError(
            f"label {y[first]} of sample {first} in the {where} is out of range; allowed are 0..{classes - 1}: {remedy}"
        )


def check_classes(dataset: Dataset) -> None:
    """Refuse to partition a data set that lacks a class: no device would train that output. One device may lack one.

    A regression has no classes to lack.
    """
    if dataset.task == "regression":
        return
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
    wrong = ~np.isfinite(x).all(axis=tuple(range(1, x.ndim)))
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
        if x.ndim - 1 != _IMAGE_AXES:
            log.warning("x in the %s is float32 from %g to %g, and nothing scales it; is that meant?", where, low, high)
            return
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
