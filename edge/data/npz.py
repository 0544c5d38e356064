"""A data set in one .npz file: a user's own data, or CIFAR converted once.

Keys: x_train, y_train, x_test, y_test. Images are uint8 (samples, height, width, channels) or float32
(samples, channels, height, width) that is already normalised; labels are integers from 0. `names`, where present, says
how many classes there are; else the largest train label does.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.data.dataset import Dataset, Samples
from sparsyedge.edge.errors import DataError

__all__ = ["read_npz"]

_KEYS = ("x_train", "y_train", "x_test", "y_test")
_MOST_CHANNELS = 4


def read_npz(path: Path, *, name: str, classes: int | None = None) -> Dataset:
    """The data set in `path`, with `classes` taken from the file where it is not given; values are not checked yet."""
    arrays = _read_arrays(path)
    train = _samples(arrays, "train", path)
    test = _samples(arrays, "test", path)
    if classes is None:
        # A largest label of -1 or a missing one is for the check to report.
        classes = len(arrays["names"]) if "names" in arrays else int(train.y.max(initial=-1)) + 1
    return Dataset(name, train, test, classes)


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with zipfile.ZipFile(path) as archive:
            present = {Path(member).stem for member in archive.namelist()}
        missing = [key for key in _KEYS if key not in present]
        if missing:
            raise DataError(
                f"{path} has no {', '.join(missing)}; it must hold the arrays {', '.join(_KEYS)}: "
                "write it with numpy.savez"
            )
        with np.load(path, allow_pickle=False) as stored:
            return {key: stored[key] for key in (*_KEYS, "names") if key in stored}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{path} cannot be read as an .npz of plain arrays ({error}); write it with numpy.savez, without objects"
        ) from error


def _samples(arrays: dict[str, NDArray[Any]], part: str, path: Path) -> Samples:
    x, y = arrays.pop(f"x_{part}"), arrays.pop(f"y_{part}")
    if y.dtype.kind not in "iu":
        raise DataError(f"y_{part} in {path} is {y.dtype}; labels must be integers: convert it with astype('int64')")
    if x.dtype == np.uint8:
        if x.ndim != 4 or x.shape[3] > _MOST_CHANNELS:
            raise DataError(
                f"x_{part} in {path} is uint8 of shape {x.shape}; wanted is (samples, height, width, channels) "
                f"with at most {_MOST_CHANNELS} channels: transpose it"
            )
        x = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    elif x.dtype != np.float32:
        raise DataError(
            f"x_{part} in {path} is {x.dtype}; allowed are uint8 (samples, height, width, channels) and normalised "
            "float32 (samples, channels, height, width): convert it with astype"
        )
    return Samples(x, y.astype(np.int64))
