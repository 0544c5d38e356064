"""A data set in one .npz file: a user's own, or a converted CIFAR. docs/how-to/data.md shows each layout.

Keys: x_train and y_train; x_test and y_test, which a device does not need; names, the class names. Images are uint8
(samples, height, width, channels), or (samples, height, width) if grey. Anything else is float32 that is already
normalised: (samples, features), (samples, channels, length), (samples, channels, height, width) or one axis more.
Labels are integers from 0; without names, the largest train label sets the number of classes. Targets of a regression
are float32 (samples,) or (samples, outputs).
"""

from __future__ import annotations

import logging
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.data.dataset import Dataset, Samples
from sparsyedge.edge.errors import DataError, UnreadableData

__all__ = ["has_test_part", "read_npz", "read_npz_test"]

log = logging.getLogger(__name__)

_TRAIN, _TEST = ("x_train", "y_train"), ("x_test", "y_test")
_MOST_CHANNELS = 4
_CHANNELS_OF_IMAGES = (1, 3, 4)


def read_npz(
    path: Path, *, name: str, classes: int | None = None, names: tuple[str, ...] = (), train_only: bool = False
) -> Dataset:
    """The data set in `path`; does not check values yet.

    `classes` and `names` come from a well-known data set; names in the file take precedence. With `train_only`, does
    not read the test part.
    """
    arrays = _read_arrays(path, parts=("train",) if train_only else ("train", "test"))
    train = _samples(arrays, "train", path)
    test = _samples(arrays, "test", path) if "x_test" in arrays else train.none()
    if "names" in arrays:
        names = _names(arrays["names"], path)
    if classes is None:
        classes = _count_outputs(train, names)
    return Dataset(name, train, test, classes, names)


def has_test_part(path: Path) -> bool:
    """Whether the file has test samples; reads only its list of arrays."""
    with zipfile.ZipFile(path) as archive:
        return bool({Path(member).stem for member in archive.namelist()} & set(_TEST))


def read_npz_test(path: Path, *, name: str) -> Dataset | None:
    """The test part alone, as the train part of a data set of its own; None if the file has none."""
    arrays = _read_arrays(path, parts=("test",))
    if "x_test" not in arrays:
        return None
    names = _names(arrays["names"], path) if "names" in arrays else ()
    test = _samples(arrays, "test", path)
    return Dataset(f"{name} (x_test)", test, test.none(), _count_outputs(test, names), names)


def _count_outputs(train: Samples, names: tuple[str, ...]) -> int:
    if train.task == "regression":
        return train.y.shape[1] if train.y.ndim > 1 else 1
    # The check reports a largest label of -1 and missing labels.
    return len(names) if names else int(train.y.max(initial=-1)) + 1


def _read_arrays(path: Path, *, parts: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    try:
        with zipfile.ZipFile(path) as archive:
            present = {Path(member).stem for member in archive.namelist()}
        wanted = [*(_TRAIN if "train" in parts else ()), *(_TEST if "test" in parts and present & set(_TEST) else ())]
        missing = [key for key in wanted if key not in present]
        if missing:
            raise DataError(
                f"{path} has no {', '.join(missing)}; it must hold the arrays {', '.join(wanted)}: "
                "write it with numpy.savez"
            )
        with np.load(path, allow_pickle=False) as stored:
            return {key: stored[key] for key in (*wanted, "names") if key in stored}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise UnreadableData(
            f"{path} cannot be read as an .npz of plain arrays ({error}); write it with numpy.savez, without objects"
        ) from error


def _names(stored: NDArray[Any], path: Path) -> tuple[str, ...]:
    if stored.dtype.kind != "U" or stored.ndim != 1:
        raise DataError(
            f"names in {path} is {stored.dtype} of shape {stored.shape}; expected a list of texts, as in "
            "names=['cat', 'dog']: convert it with astype(str)"
        )
    if not len(stored):
        raise DataError(f"names in {path} is empty; give each class a name, or leave `names` out")
    return tuple(map(str, stored))


def _samples(arrays: dict[str, NDArray[Any]], part: str, path: Path) -> Samples:
    x, y = arrays.pop(f"x_{part}"), arrays.pop(f"y_{part}")
    if y.dtype.kind in "US":
        raise DataError(
            f"y_{part} in {path} is text; labels are integers, and `names` says what they mean: write both with "
            "names, y = numpy.unique(y, return_inverse=True)"
        )
    if y.dtype.kind not in "iu" and y.dtype != np.float32:
        raise DataError(
            f"y_{part} in {path} is {y.dtype}; labels must be integers, and targets of a regression float32: convert "
            "it with astype('int64') or astype('float32')"
        )
    where = f"x_{part} in {path}"
    if x.dtype == np.uint8:
        x = _channels_first(x, where)
    elif x.dtype == np.float32:
        _check_float_layout(x, where)
    else:
        pixels = "pixels of 0..255 with astype('uint8')"
        normalised = "numbers that are normalised to -1..1 with astype('float32')"
        tokens = "; token ids cannot be trained on: store what they stand for" if x.dtype.kind in "iu" else ""
        raise DataError(
            f"{where} is {x.dtype}; allowed are uint8 (samples, height, width, channels) and normalised float32 "
            f"(samples, channels, height, width) or of other axes: convert {pixels}, {normalised}{tokens}"
        )
    return Samples(x, y if y.dtype == np.float32 else y.astype(np.int64))


def _channels_first(x: NDArray[np.uint8], where: str) -> NDArray[np.uint8]:
    """Images in the layout for training, from the layout of image files and most data sets."""
    if x.ndim == 3:
        log.info("%s has shape %s: taken as grey images of %d x %d pixels", where, x.shape, *x.shape[1:])
        return np.ascontiguousarray(x[:, np.newaxis])
    if x.ndim != 4 or x.shape[3] > _MOST_CHANNELS:
        channels_first = x.ndim == 4 and x.shape[1] <= _MOST_CHANNELS
        remedy = "its channels come first: x.transpose(0, 2, 3, 1) puts them last" if channels_first else "reshape it"
        raise DataError(
            f"{where} is uint8 of shape {x.shape}; expected (samples, height, width, channels) with at most "
            f"{_MOST_CHANNELS} channels, or (samples, height, width): {remedy}"
        )
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2))


def _check_float_layout(x: NDArray[np.float32], where: str) -> None:
    """Refuse images with channels last: a model of 28 channels would train on them, and learn little."""
    if x.ndim == 3:
        # Nothing tells a grey image from a signal of many channels; a square looks like one.
        level = logging.WARNING if x.shape[1] == x.shape[2] else logging.INFO
        note = "%s has shape %s: taken as signals of %d channels and length %d; for grey images, store x[:, None]"
        log.log(level, note, where, x.shape, *x.shape[1:])
    if x.ndim == 4 and x.shape[1] == x.shape[2] > _MOST_CHANNELS and x.shape[3] in _CHANNELS_OF_IMAGES:
        _, height, width, channels = x.shape
        raise DataError(
            f"{where} is float32 of shape {x.shape}, which looks like (samples, height, width, channels); expected "
            f"(samples, channels, height, width): x.transpose(0, 3, 1, 2) makes it {channels} x {height} x {width}. "
            f"Where it does have {height} channels, swap height and width: x.transpose(0, 1, 3, 2)"
        )
