"""Reads and checks a device's data before it goes on the card, where a mistake costs a minute, not a trip to the board.

A board has numpy but neither scikit-learn nor Pillow, so we pack digits and folders of images into an .npz here.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparsyedge.edge.data.dataset import Dataset
from sparsyedge.edge.data.download import Archive
from sparsyedge.edge.data.form import describe, form_of
from sparsyedge.edge.data.loaders import DATASETS, known_datasets, load
from sparsyedge.edge.errors import FlashError

__all__ = ["CardData", "card_data", "check_named"]

PACKED = tuple(name for name, known in DATASETS.items() if known.archive is None)
"""Data sets from Python packages that boards lack; small enough for the card."""
DOWNLOADED = {name: known.archive for name, known in DATASETS.items() if known.archive is not None}
"""Data sets that each device downloads itself."""
LINK_BYTES_PER_S = 10e6 / 8
"""Speed of an ordinary connection, to estimate how long a download takes at least."""


@dataclass(frozen=True)
class CardData:
    """A device's training data: a file on the card or a data set's name, and a description for the user."""

    file: Path | None
    dataset: str | None
    understood: tuple[str, ...]


@contextmanager
def card_data(data: str | None) -> Iterator[CardData]:
    """Resolve `--data`; removes any file it packed when the block ends. Raises FlashError or DataError."""
    with tempfile.TemporaryDirectory(prefix="sparsyedge-data-") as folder:
        yield _understand(data, Path(folder))


def check_named(name: str, device: str) -> None:
    """Raise FlashError if a board cannot read the data set that the device file names."""
    if name in PACKED:
        raise FlashError(
            f"the file of {device} names the data set {name}, which needs more than a board has; add `--data {name}`, "
            "and it travels on the card"
        )


def _understand(data: str | None, folder: Path) -> CardData:
    if data is None:
        return CardData(None, None, ())
    if data in DOWNLOADED:
        return CardData(None, data, (_download_notice(data, DOWNLOADED[data]),))
    if data in PACKED:
        return _packed(load(data), folder / f"{data}.npz")
    path = Path(data)
    if path.is_dir():
        return _from_folder(path, folder)
    if data in known_datasets():
        raise FlashError(
            f"--data is {data!r}, a data set of a package that is installed here and not on the card; save its arrays "
            "with numpy.savez as x_train, y_train and names, and name that .npz file"
        )
    if path.suffix != ".npz" or not path.is_file():
        raise FlashError(
            f"--data is {data!r}, allowed are an .npz file, a folder of images in CLASS/ or train/CLASS/, "
            f"{', '.join((*PACKED, *DOWNLOADED))}; check the path"
        )
    return _as_it_is(path)


def _from_folder(path: Path, folder: Path) -> CardData:
    """Pack a folder of images; for a folder with a single .npz, use that file."""
    files = sorted(path.glob("*.npz"))
    if len(files) == 1:
        return _as_it_is(files[0])
    if files:
        raise FlashError(f"--data {path} has {len(files)} .npz files, needed is one; name the file")
    if not any(each.is_dir() for each in path.iterdir()):
        raise FlashError(
            f"--data {path} has neither an .npz file nor folders of images; wanted are {path}/CLASS/ or "
            f"{path}/train/CLASS/, a folder per class"
        )
    # Keep the test part, if any: the card's file then holds all the data the user gave.
    dataset = load(str(path), train_only=not (path / "test").is_dir())
    return _packed(dataset, folder / f"{path.resolve().name}.npz")


def _as_it_is(path: Path) -> CardData:
    return CardData(path, None, _described(load(str(path), train_only=True), path))


def _packed(dataset: Dataset, path: Path) -> CardData:
    """Pack the data set into one .npz for the card; images have the usual order (samples, height, width, channels)."""
    arrays: dict[str, Any] = {"names": np.array(dataset.names)}
    for part, samples in (("train", dataset.train), ("test", dataset.test)):
        if len(samples):
            arrays |= {f"x_{part}": samples.x.transpose(0, 2, 3, 1), f"y_{part}": samples.y}
    np.savez_compressed(path, **arrays)
    return CardData(path, None, _described(dataset, path))


def _described(dataset: Dataset, path: Path) -> tuple[str, ...]:
    counts = f"{len(dataset.train):,} samples to train on" + f" and {len(dataset.test):,} to test" * bool(
        len(dataset.test)
    )
    size = f"{path.stat().st_size / 1e6:.1f} MB"
    return (f"{dataset.name}: {counts}, as {path.name}, {size}", *describe(form_of(dataset), dataset.train))


def _download_notice(name: str, archive: Archive) -> str:
    minutes = math.ceil(archive.size_bytes / LINK_BYTES_PER_S / 60)
    return (
        f"{name} does not travel: every device downloads {archive.size_bytes / 1e6:,.0f} MB when it starts (at least "
        f"{minutes} minutes at 10 Mbit/s; {archive.unpacked_bytes / 1e6:,.0f} MB more once unpacked), and needs "
        "the internet for it"
    )
