"""A folder of images that grows while the device runs: new files are read, broken ones skipped with their name."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.data.checks import check
from sparsyedge.edge.data.dataset import Dataset, Samples
from sparsyedge.edge.data.folder import IMAGE_SUFFIXES, folders_in, read_image, train_folder
from sparsyedge.edge.data.source import Found, Part, nothing_yet
from sparsyedge.edge.errors import DataError
from sparsyedge.edge.text import one_line

__all__ = ["FolderSource"]

MAX_TROUBLE = 200
"""The longest sentence about a broken image; file names are as long as somebody likes."""
Image = NDArray[np.uint8]
Place = tuple[str, str]
"""A class and a file name."""


class FileVersion(NamedTuple):
    """What tells whether a file has changed."""

    size: int
    changed_ns: int
    inode: int
    is_file: bool


@dataclass(frozen=True)
class _Images:
    """The images of one part as they were last read."""

    versions: dict[Place, FileVersion]
    classes: tuple[str, ...]
    rows: dict[Place, int]
    """Where each good image is in `x`."""
    x: Image
    broken: dict[Place, str]
    """What is wrong with each of the others."""

    @property
    def trouble(self) -> str:
        """What is wrong with the first broken image; empty if there is none."""
        return next(iter(self.broken.values()), "")

    def of(self, place: Place, version: FileVersion) -> Image | None:
        """The image as it was read before, if its file has not changed."""
        row = self.rows.get(place) if self.versions.get(place) == version else None
        return None if row is None else self.x[row]

    def part(self) -> Part:
        """All good images, class by class and by name."""
        numbers = {name: number for number, name in enumerate(self.classes)}
        return Part(Samples(self.x, np.array([numbers[name] for name, _ in self.rows], dtype=np.int64)), self.classes)


NONE = _Images({}, (), {}, np.zeros((0, 1, 1, 1), dtype=np.uint8), {})


class FolderSource:
    """The folders of classes in `train/`, or directly in the folder; `test/` is read when somebody evaluates."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._train = NONE
        self._is_first = True
        self._test: dict[Place, FileVersion] | None = None
        """The files to evaluate on; None if there is no folder for them."""
        self._told = ""
        """Why the folder as a whole could not be read at the last look; empty if it could."""

    def look(self) -> Found | None:
        """List the folder, and read the files that are new or have changed."""
        is_first, self._is_first = self._is_first, False
        try:
            listed, classes = _listed(train_folder(self._folder))
            before_test, self._test = self._test, _listed_test(self._folder / "test")
            is_same = (listed, classes, self._test) == (self._train.versions, self._train.classes, before_test)
            if is_same and not is_first and not self._told:
                return None
            now = _read(train_folder(self._folder), listed, classes, self._train)
            if now.rows:
                self._check(now)
        except DataError as error:
            if is_first:
                raise
            return self._kept(str(error))
        except OSError as error:
            return self._kept(f"{self._folder} cannot be read: {error.strerror or error}")
        before, self._train, self._told = self._train, now, ""
        return self._found(before, now)

    def _check(self, images: _Images) -> None:
        part = images.part()
        check(
            Dataset(self._name, part.samples, part.samples.none(), len(part.names), part.names),
            train_only=True,
        )

    def _found(self, before: _Images, now: _Images) -> Found:
        broken = len(now.broken)
        if not now.rows:
            wanted = f"{self._folder} holds no images yet; expected files in {self._folder}/CLASS/"
            return nothing_yet(now.trouble or wanted, broken=broken)
        kept = before.rows.keys() & now.rows.keys()
        return Found(
            train=now.part(),
            test=partial(_read_test, self._folder / "test", now.x.shape[1:]),
            has_test=self._test is not None,
            added=len(now.rows) - len(kept),
            changed=sum(before.versions[place] != now.versions[place] for place in kept),
            removed=len(before.rows) - len(kept),
            broken=broken,
            trouble=now.trouble,
        )

    def _kept(self, trouble: str) -> Found | None:
        """What was read before, once for each reason."""
        if trouble == self._told:
            return None
        self._told = trouble
        broken = len(self._train.broken)
        if not self._train.rows:
            return nothing_yet(trouble, broken=broken)
        return Found(
            train=self._train.part(),
            test=partial(_read_test, self._folder / "test", self._train.x.shape[1:]),
            has_test=self._test is not None,
            broken=broken,
            trouble=f"{trouble}; the images stay",
        )


def _listed(folder: Path) -> tuple[dict[Place, FileVersion], tuple[str, ...]]:
    """The image files of each class by name, with what tells whether they have changed; reads none of them."""
    classes = tuple(each.name for each in folders_in(folder))
    versions: dict[Place, FileVersion] = {}
    for name in classes:
        with os.scandir(folder / name) as entries:
            images = sorted(entry.name for entry in entries if _is_image(entry.name))
        for image in images:
            try:
                found = (folder / name / image).stat()
            except FileNotFoundError:  # gone since it was listed, or a link to nowhere
                continue
            is_file = stat.S_ISREG(found.st_mode)
            versions[name, image] = FileVersion(found.st_size, found.st_mtime_ns, found.st_ino, is_file)
    return versions, classes


def _listed_test(folder: Path) -> dict[Place, FileVersion] | None:
    return _listed(folder)[0] if folder.is_dir() else None


def _is_image(name: str) -> bool:
    return not name.startswith(".") and Path(name).suffix.lower() in IMAGE_SUFFIXES


def _read(folder: Path, listed: Mapping[Place, FileVersion], classes: tuple[str, ...], before: _Images) -> _Images:
    """The listed images; reads only those that differ from before."""
    images: dict[Place, Image] = {}
    broken: dict[Place, str] = {}
    for place, version in listed.items():
        image = before.of(place, version)
        if place in before.broken and before.versions[place] == version:
            broken[place] = before.broken[place]
            continue
        try:
            images[place] = image if image is not None else _read_file(folder.joinpath(*place), version)
        except (DataError, OSError) as error:
            broken[place] = one_line(str(error), MAX_TROUBLE)
    shape = _shape(images, before)
    for place, odd in [(place, image.shape) for place, image in images.items() if image.shape != shape]:
        del images[place]
        sentence = f"{folder.joinpath(*place)} has shape (channels, height, width) {odd}, the others have {shape}"
        broken[place] = one_line(sentence, MAX_TROUBLE)
    x = np.stack(list(images.values())) if images else NONE.x
    return _Images(dict(listed), classes, {place: row for row, place in enumerate(images)}, x, broken)


def _read_file(path: Path, version: FileVersion) -> Image:
    # Opening a pipe would wait for a writer for ever.
    if not version.is_file:
        raise DataError(f"{path} is not a file")
    return read_image(path)


def _shape(images: Mapping[Place, Image], before: _Images) -> tuple[int, ...]:
    """The shape that all images must have: the one of those from before, else that of most."""
    if before.rows:
        return before.x.shape[1:]
    shapes = Counter(image.shape for image in images.values())
    return max(shapes, key=lambda shape: shapes[shape], default=())


def _read_test(folder: Path, shape: tuple[int, ...]) -> Part | None:
    """The images to evaluate on; None if there are none."""
    if not folder.is_dir():
        return None
    listed, classes = _listed(folder)
    images = _read(folder, listed, classes, _Images({}, (), {("", ""): 0}, np.zeros((0, *shape), dtype=np.uint8), {}))
    return images.part() if images.rows else None
