"""A user's own images: a folder per class with one file per image, all of the same size.

The class folders are in train/ and test/, or, on a device that only trains, directly in the folder. This file reads PPM
and PGM; PNG and JPEG need Pillow from the extra `images`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.data.dataset import Dataset, Samples
from sparsyedge.edge.errors import DataError
from sparsyedge.edge.installation import install_command

__all__ = [
    "IMAGE_SUFFIXES",
    "folders_in",
    "has_image_folders",
    "read_image",
    "read_image_folders",
    "train_folder",
]

PARTS = ("train", "test")
NETPBM = (".ppm", ".pgm", ".pnm")
WITH_PILLOW = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
IMAGE_SUFFIXES = (*NETPBM, *WITH_PILLOW)
# Magic, width, height, largest value, each after white space or comments, and one white space before the pixels.
HEADER = re.compile(rb"(P[56])" + rb"(?:\s+(?:#[^\n]*\n\s*)*)(\d{1,9})" * 3 + rb"\s")


def has_image_folders(folder: Path) -> bool:
    """Whether the folder has train/ or test/, or folders with images."""
    has_parts = any((folder / part).is_dir() for part in PARTS)
    return has_parts or (folder.is_dir() and any(map(_images_in, folders_in(folder))))


def read_image_folders(folder: Path, *, name: str, train_only: bool = False) -> Dataset:
    """The data set in a folder; the folders of its train part are the classes, numbered by name."""
    train = train_folder(folder)
    classes = [each.name for each in folders_in(train)]
    samples = _read_part(train, classes)
    test = folder / "test"
    if train_only or not test.is_dir():
        return Dataset(name, samples, samples.none(), len(classes), tuple(classes))
    strangers = [each.name for each in folders_in(test) if each.name not in classes]
    if strangers:
        raise DataError(f"{test} has a class {strangers[0]!r} that {train} has not; allowed are {', '.join(classes)}")
    return Dataset(name, samples, _read_part(test, classes), len(classes), tuple(classes))


def train_folder(folder: Path) -> Path:
    """The folder's train part, or the folder itself if it has neither part."""
    parts = [part for part in PARTS if (folder / part).is_dir()]
    classes = [each.name for each in folders_in(folder) if each.name not in parts and _images_in(each)]
    if parts and classes:
        raise DataError(
            f"{folder} has {parts[0]}/, which holds a part of the data, beside {classes[0]}/, which holds images; move "
            "the folders of classes into train/"
        )
    if parts == ["test"]:
        raise DataError(f"{folder} has test/ and no train/; move the images to train on into train/CLASS/")
    return folder / "train" if parts else folder


def folders_in(folder: Path) -> list[Path]:
    """Visible subfolders by name: editors and file managers leave hidden ones behind."""
    return sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))


def _images_in(folder: Path) -> list[Path]:
    # `[!.]`: macOS puts a hidden ._NAME.jpg beside every NAME.jpg it copies, which is not an image.
    return sorted(path for path in folder.glob("[!.]*") if path.suffix.lower() in IMAGE_SUFFIXES)


def _read_part(folder: Path, classes: list[str]) -> Samples:
    images: list[NDArray[np.uint8]] = []
    labels = []
    first: Path | None = None
    for label, name in enumerate(classes):
        for path in _images_in(folder / name):
            image = read_image(path)
            first = first or path
            if images and image.shape != images[0].shape:
                raise DataError(
                    f"{path} has shape (channels, height, width) {image.shape}, {first} has {images[0].shape}; "
                    "all images must have one shape: resize them"
                )
            images.append(image)
            labels.append(label)
    if not images:
        raise DataError(f"{folder} holds no images; expected files in {folder}/CLASS/, in PPM, PGM, PNG or JPEG")
    return Samples(np.stack(images), np.array(labels, dtype=np.int64))


def read_image(path: Path) -> NDArray[np.uint8]:
    """An image file as (channels, height, width) in 0..255: one channel if grey, else three; no alpha."""
    pixels = _read_netpbm(path) if path.suffix.lower() in NETPBM else _read_with_pillow(path)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _read_netpbm(path: Path) -> NDArray[np.uint8]:
    content = path.read_bytes()
    header = HEADER.match(content)
    if header is None or int(header.group(4)) != 255:
        raise DataError(f"{path} is not a binary PPM or PGM of 8 bits; convert it")
    channels = 3 if header.group(1) == b"P6" else 1
    width, height = int(header.group(2)), int(header.group(3))
    pixels = np.frombuffer(content, dtype=np.uint8, offset=header.end())
    if pixels.size < width * height * channels:
        raise DataError(f"{path} ends after {pixels.size} of {width * height * channels} bytes; replace it")
    return pixels[: width * height * channels].reshape(height, width, channels)


def _read_with_pillow(path: Path) -> NDArray[np.uint8]:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(
            f"{path} needs Pillow, which is not installed; run `{install_command('images')}` or convert to PPM"
        ) from error
    try:
        with Image.open(path) as image:
            pixels: NDArray[Any] = np.asarray(image.convert("L" if image.mode in ("1", "L") else "RGB"))
    except Exception as error:  # decoders raise anything on broken or huge images
        raise DataError(f"{path} cannot be read as an image ({error}); remove or replace it") from error
    return pixels if pixels.ndim == 3 else pixels[:, :, np.newaxis]
