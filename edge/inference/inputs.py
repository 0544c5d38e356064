"""Files as input for a delivered model: images fitted to its size and colours, and samples from an .npz file."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.data.dataset import Dataset, Labels
from sparsyedge.edge.data.folder import IMAGE_SUFFIXES, read_image
from sparsyedge.edge.errors import DataError
from sparsyedge.edge.inference.description import Description, default_names

__all__ = ["Batch", "read_batches", "read_dataset", "recoloured"]

BATCH = 50
PARTS = ("_test", "", "_train")
"""Suffixes of array names in an .npz; we use the first one present."""
# Red, green and blue to grey by ITU-R 601, in parts of 65,536: Pillow's arithmetic without Pillow.
GREY = np.array([19595, 38470, 7471], dtype=np.uint32)

Sample = tuple[int, ...]
"""The shape of one sample, with channels first."""


@dataclass(frozen=True)
class Batch:
    """Samples in the model's own layout and type."""

    x: NDArray[Any]
    labels: Labels | None = None
    """Their classes, or the targets (batch, outputs) of a regression, if the file has them."""
    first: int | None = None
    """The index of the first sample, in a file of many."""
    resized_from: tuple[int, int] | None = None
    """The original width and height of an image that we resized for the model."""


def read_batches(path: Path, description: Description, sample: Sample) -> Iterator[Batch]:
    """The samples of a file, in pieces that fit into memory; raises DataError if the model cannot take them."""
    suffix = path.suffix.lower()
    if path.is_dir():
        raise DataError(f"{path} is a folder; name the files in it, for example {path}/*.png")
    if not path.is_file():
        raise DataError(f"{path} is not a file; give images or .npz files")
    try:
        if suffix == ".npz":
            yield from _npz_batches(path, description, sample)
        elif suffix in IMAGE_SUFFIXES:
            yield _image_batch(path, description, sample)
        else:
            raise DataError(f"{path} has an unknown file type; allowed are .npz, {', '.join(IMAGE_SUFFIXES)}")
    except (OSError, MemoryError) as error:
        raise DataError(f"{path} cannot be read: {error or 'it takes more memory than there is'}") from error


# ---- images ----------------------------------------------------------------------------------------------------------


def _image_batch(path: Path, description: Description, sample: Sample) -> Batch:
    if description.sample_type != "uint8":
        raise DataError(
            f"{path} is an image, and the model was trained on {description.sample_type} samples, not on images; "
            f"give an .npz file with samples as they were stored for training"
        )
    channels, height, width = sample  # only images are stored as uint8
    pixels = recoloured(read_image(path), channels, path)
    found = (pixels.shape[2], pixels.shape[1])
    if found == (width, height):
        return Batch(_as_input(pixels[np.newaxis], description))
    pixels = _resized(pixels, width, height, path)
    return Batch(_as_input(pixels[np.newaxis], description), resized_from=found)


def recoloured(pixels: NDArray[np.uint8], channels: int, path: Path) -> NDArray[np.uint8]:
    """An image of one or three channels, converted to the model's number of channels."""
    if channels not in (1, 3):
        raise DataError(
            f"{path} is an image of {len(pixels)} channels and the model takes {channels}, which no image has; "
            f"give an .npz file"
        )
    if len(pixels) == channels:
        return pixels
    if channels == 3:
        return np.repeat(pixels, 3, axis=0)
    grey: NDArray[np.uint8] = (np.tensordot(GREY, pixels.astype(np.uint32), 1) + 0x8000 >> 16).astype(np.uint8)
    return grey[np.newaxis]


def _resized(pixels: NDArray[np.uint8], width: int, height: int, path: Path) -> NDArray[np.uint8]:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(
            f"{path} has {pixels.shape[2]}x{pixels.shape[1]} pixels and the model takes {width}x{height}; Pillow, "
            f"which resizes images, is not installed: run `pip install pillow` or resize it yourself"
        ) from error
    if 0 in pixels.shape:
        raise DataError(f"{path} has {pixels.shape[2]}x{pixels.shape[1]} pixels; an image has at least one")
    planes = [Image.fromarray(plane).resize((width, height), Image.Resampling.BILINEAR) for plane in pixels]
    return np.stack([np.asarray(plane) for plane in planes])


def _as_input(pixels: NDArray[np.uint8], description: Description) -> NDArray[Any]:
    """Convert images (batch, channels, height, width) of 0..255 to the model's input."""
    if description.dtype == "uint8":
        return np.ascontiguousarray(pixels.transpose(0, 2, 3, 1) if description.layout == "NHWC" else pixels)
    return pixels / np.float32(255)


# ---- .npz ------------------------------------------------------------------------------------------------------------


def _npz_batches(path: Path, description: Description, sample: Sample) -> Iterator[Batch]:
    arrays = _read_arrays(path)
    part = next(part for part in PARTS if f"x{part}" in arrays)
    x = _checked(arrays[f"x{part}"], f"x{part} in {path}", description, sample)
    labels = None
    if f"y{part}" in arrays:
        labels = _known(arrays[f"y{part}"], arrays.get("names"), f"y{part} in {path}", description, len(x))
    return _in_pieces(x, labels, description)


def _in_pieces(x: NDArray[Any], labels: Labels | None, description: Description) -> Iterator[Batch]:
    for start in range(0, len(x), BATCH):
        piece = x[start : start + BATCH]
        if piece.dtype == np.uint8:
            piece = _as_input(piece, description)
        yield Batch(piece, None if labels is None else labels[start : start + BATCH], first=start)


def read_dataset(data: Dataset, description: Description, sample: Sample) -> Iterator[Batch]:
    """The test part of a data set with its labels; raises DataError if the model cannot take it."""
    stored, where = data.test.x, f"the test part of data set {data.name}"
    if stored.dtype != description.sample_type or stored.shape[1:] != sample:
        raise DataError(
            f"{where} is {stored.dtype} of shape {stored.shape}; the model was trained on {description.sample_type} "
            f"samples of shape {sample}: give the data set that it was trained for"
        )
    names = np.array(data.names) if data.names else None
    labels = _known(data.test.y, names, where, description, len(stored))
    return _in_pieces(stored, labels, description)


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The samples of the first part present, with their labels and class names."""
    try:
        # numpy would read a file that is no archive as an array or a pickle, and leave it open.
        if not zipfile.is_zipfile(path):
            raise ValueError("it is not an archive")
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            part = next((part for part in PARTS if f"x{part}" in stored), None)
            if part is None:
                raise DataError(f"{path} has none of the arrays x_test, x, x_train; write it with numpy.savez")
            return {key: stored[key] for key in (f"x{part}", f"y{part}", "names") if key in stored}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{path} cannot be read as an .npz of plain arrays ({error}); write it with numpy.savez, without objects"
        ) from error


def _checked(x: NDArray[Any], where: str, description: Description, sample: Sample) -> NDArray[Any]:
    """Samples with channels first: uint8 pixels, or the model's own type."""
    pixels = (*sample[1:], sample[0])
    if x.size == 0:
        raise DataError(f"{where} is empty: its shape is {x.shape}; give at least one sample")
    if description.sample_type == "uint8" and x.dtype == np.uint8:
        if x.ndim == 3 and sample[0] == 1:
            x = x[..., np.newaxis]
        if x.shape[1:] == pixels:
            return x.transpose(0, 3, 1, 2)
    elif x.dtype == description.dtype and x.shape[1:] == sample:
        if x.dtype == np.float32 and not np.isfinite(x).all():
            raise DataError(f"{where} holds NaN or infinity; only finite values are allowed")
        if description.sample_type == "uint8" and not (x.min() >= 0 and x.max() <= 1):
            raise DataError(
                f"{where} goes from {x.min():g} to {x.max():g}; this model takes pixels of 0..1: divide by 255"
            )
        return x
    dtype, shape = ("uint8", pixels) if description.sample_type == "uint8" else (description.dtype, sample)
    wanted = f"{dtype} (samples, {', '.join(map(str, shape))})"
    raise DataError(f"{where} is {x.dtype} of shape {x.shape}; the model takes {wanted}: convert or transpose it")


def _known(y: NDArray[Any], names: NDArray[Any] | None, where: str, description: Description, samples: int) -> Labels:
    """What is known of the samples, as the model gives it: classes or targets."""
    if description.task == "classes":
        return _labels(y, names, where, description, samples)
    targets = y[:, np.newaxis] if y.ndim == 1 else y
    outputs = len(description.names)
    if y.dtype != np.float32 or targets.shape != (samples, outputs):
        alone = f"({samples},) or " if outputs == 1 else ""
        raise DataError(
            f"{where} is {y.dtype} of shape {y.shape}; the model is a regression: expected float32 of shape "
            f"{alone}({samples}, {outputs})"
        )
    if not np.isfinite(targets).all():
        raise DataError(f"{where} holds NaN or infinity; only finite values are allowed")
    return targets


def _labels(
    y: NDArray[Any], names: NDArray[Any] | None, where: str, description: Description, samples: int
) -> NDArray[np.int64]:
    """The labels as the model's class numbers; the file may number classes in another order."""
    known = description.names
    if y.dtype.kind not in "iu" or y.shape != (samples,):
        raise DataError(f"{where} is {y.dtype} of shape {y.shape}; expected integers of shape ({samples},)")
    own = [str(name) for name in names.ravel()] if names is not None else list(known)
    if own != list(known) and known == default_names(len(known)):
        own = list(known)  # the model's classes are unnamed, so match them by number
    strangers = [name for name in own if name not in known]
    if strangers:
        raise DataError(
            f"{where} has a class {strangers[0][:200]!r} that the model does not know; "
            f"it knows {', '.join(known)[:1000]}"
        )
    wrong = (y < 0) | (y >= len(own))
    if wrong.any():
        first = int(np.argmax(wrong))
        raise DataError(f"label {y[first]} of sample {first} in {where} is out of range; allowed are 0..{len(own) - 1}")
    numbers: NDArray[np.int64] = np.array([known.index(name) for name in own])[y]
    return numbers
