"""Data sets by name: where we look for them, and the error if we find none."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path

from sparsyedge.edge.data.checks import check
from sparsyedge.edge.data.cifar import CIFAR10, CIFAR100, CifarVersion, has_cifar, read_cifar
from sparsyedge.edge.data.dataset import Dataset
from sparsyedge.edge.data.digits import DIGIT_NAMES, read_digits
from sparsyedge.edge.data.download import Archive, fetch
from sparsyedge.edge.data.folder import has_image_folders, read_image_folders
from sparsyedge.edge.data.form import Form
from sparsyedge.edge.data.growing_folder import FolderSource
from sparsyedge.edge.data.growing_npz import NpzSource
from sparsyedge.edge.data.growing_plugin import PluginSource, load_plugin
from sparsyedge.edge.data.npz import read_npz
from sparsyedge.edge.data.source import DataSource, FixedSource
from sparsyedge.edge.data.speech import SPEECH_ARCHIVE, SPEECH_WORDS, has_speech, read_speech_folder, read_speech_npz
from sparsyedge.edge.errors import DataError

__all__ = [
    "DATASETS",
    "KnownDataset",
    "find_by_name",
    "known_datasets",
    "load",
    "load_cifar",
    "load_speech",
    "open_source",
]

log = logging.getLogger(__name__)

ENTRY_POINTS = "sparsyedge.datasets"


def load(name_or_path: str, data_dir: Path | None = None, *, train_only: bool = False) -> Dataset:
    """The named data set, or the user's own in an .npz file or a folder of images; checked and ready to partition.

    Looks in `data_dir`, then in $SPARSYEDGE_DATA, then in ~/.cache/sparsyedge. If none has it, downloads it into the
    last one, which blocks for as long as the network takes. With `train_only`, skips the test part, which may be
    missing.
    """
    _check_data_dir(data_dir)
    try:
        dataset = _read(name_or_path, data_dir, train_only=train_only)
    except OSError as error:
        raise DataError(f"data set {name_or_path} cannot be read: {error}") from error
    if train_only:
        dataset = replace(dataset, test=dataset.train.none())
    check(dataset, train_only=train_only)
    return dataset


def open_source(name_or_path: str, data_dir: Path | None = None) -> DataSource:
    """The named data as a device follows it: the user's own may change while the device runs; known data sets do not.

    Raises DataError if there is no such data; a folder may still be empty.
    """
    if name_or_path not in DATASETS:
        _check_data_dir(data_dir)
        if name_or_path.endswith(".npz"):
            return NpzSource(_own_file(name_or_path, data_dir), name_or_path)
        if (folder := _image_folder(name_or_path, data_dir) or _empty_folder(name_or_path)) is not None:
            return FolderSource(folder, name_or_path)
        if (plugin := _plugin(name_or_path)) is not None:
            return PluginSource(plugin, data_dir)
    return FixedSource(load(name_or_path, data_dir, train_only=True))


def _empty_folder(path: str) -> Path | None:
    """A folder whose images are still to come: it holds no files, and no folders but empty ones."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        return None
    return folder if all(each.is_dir() and not any(each.iterdir()) for each in folder.iterdir()) else None


def _check_data_dir(data_dir: Path | None) -> None:
    if data_dir is not None and not data_dir.expanduser().is_dir():
        raise DataError(f"data_dir = {data_dir} is not a folder; create it, or leave it out to use the cache")


def _read(name_or_path: str, data_dir: Path | None, *, train_only: bool) -> Dataset:
    if name_or_path in DATASETS:
        return DATASETS[name_or_path].load(data_dir)
    if name_or_path.endswith(".npz"):
        return read_npz(_own_file(name_or_path, data_dir), name=name_or_path, train_only=train_only)
    if (folder := _image_folder(name_or_path, data_dir)) is not None:
        return read_image_folders(folder, name=name_or_path, train_only=train_only)
    if (plugin := _plugin(name_or_path)) is not None:
        return load_plugin(plugin, data_dir)
    if Path(name_or_path).expanduser().is_dir():
        raise DataError(
            f"data set {name_or_path} is a folder without images; expected train/CLASS/ and test/CLASS/ with one "
            "file per image, or, to train on a device, CLASS/ alone"
        )
    near = difflib.get_close_matches(name_or_path, DATASETS, n=1)
    hint = f"did you mean {near[0]}?" if near else "give one of these, or a folder with train/CLASS and test/CLASS"
    raise DataError(
        f"data set {name_or_path!r} is unknown; known are {', '.join(known_datasets())} and *.npz files: {hint}"
    )


def known_datasets() -> tuple[str, ...]:
    """All names that can be loaded here, including those from installed packages."""
    return (*DATASETS, *sorted(metadata.entry_points(group=ENTRY_POINTS).names))


def _plugin(name: str) -> metadata.EntryPoint | None:
    return next(iter(metadata.entry_points(group=ENTRY_POINTS, name=name)), None)


def find_by_name(name: str, data_dir: Path | None) -> Path | None:
    """The file or folder of that name in the first folder that has it, searched as `load` does."""
    return next((folder / name for folder in _search_folders(data_dir) if (folder / name).exists()), None)


def _image_folder(path: str, data_dir: Path | None) -> Path | None:
    candidates = [Path(path).expanduser(), *(folder / path for folder in _search_folders(data_dir))]
    return next((candidate for candidate in candidates if has_image_folders(candidate)), None)


def load_speech(name: str, data_dir: Path | None, *, mel: bool = False, archive: Archive = SPEECH_ARCHIVE) -> Dataset:
    """Speech Commands: complete from the first folder that has it, else a subset, else from its official site."""
    folders = _search_folders(data_dir)
    for folder in folders:
        for unpacked in (folder / archive.folder, folder / "speech_commands", folder):
            if has_speech(unpacked):
                return read_speech_folder(unpacked, name=name, mel=mel)
    for file in ("speech_commands.npz", "speech.npz", "speech_small.npz"):
        for folder in folders:
            if (folder / file).is_file():
                log.warning("%s is read from %s, which may hold a subset", name, folder / file)
                return read_speech_npz(folder / file, name=name, mel=mel)
    by_hand = (
        f"unpack it into a folder {archive.folder}/, since it brings none of its own; then put that folder (or one "
        "speech_commands.npz with x, y, names and split)"
    )
    return read_speech_folder(_fetch(name, archive, None, folders, by_hand=by_hand), name=name, mel=mel)


def load_cifar(version: CifarVersion, data_dir: Path | None) -> Dataset:
    """One CIFAR: complete from the first folder that has it, else a subset, else from its official site."""
    folders = _search_folders(data_dir)
    for folder in folders:
        for unpacked in (folder / version.archive.folder, folder):
            if has_cifar(unpacked, version):
                return read_cifar(unpacked, version)
        whole = folder / f"{version.name}.npz"
        if whole.is_file():
            return read_npz(whole, name=version.name, classes=version.form.classes, names=version.form.names)
    for folder in folders:
        subset = folder / f"{version.name}_small.npz"
        if subset.is_file():
            log.warning("%s was not found whole; using the subset %s", version.name, subset)
            return read_npz(subset, name=version.name, classes=version.form.classes, names=version.form.names)
    files = version.train_files + version.test_files
    by_hand = (
        f"unpack it, then put its folder {version.archive.folder}/ (or one {version.name}.npz with x_train, y_train, "
        "x_test, y_test)"
    )
    return read_cifar(_fetch(version.name, version.archive, files, folders, by_hand=by_hand), version)


def _fetch(name: str, archive: Archive, files: Collection[str] | None, folders: list[Path], *, by_hand: str) -> Path:
    """The archive's folder in the cache; if it cannot be fetched, the error explains how to do it `by_hand`."""
    cache = _cache_folder()
    try:
        return fetch(archive, files, cache)
    except OSError as error:
        raise DataError(
            f"data set {name} was not found in {', '.join(map(str, folders))}, and {archive.url} could not be fetched "
            f"into {cache} ({error}). On a machine with a network, download that file ({archive.size_bytes / 1e6:,.0f} "
            f"MB) and {by_hand} into one of these folders, or name its folder with --data-dir or $SPARSYEDGE_DATA"
        ) from error


def _own_file(path: str, data_dir: Path | None) -> Path:
    """Find a file, relative to the working folder first, then to the data folders."""
    candidates = [Path(path).expanduser(), *(folder / path for folder in _search_folders(data_dir))]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise DataError(f"data set {path} is not a file; looked at {', '.join(map(str, dict.fromkeys(candidates)))}")


def _search_folders(data_dir: Path | None) -> list[Path]:
    named = [data_dir] if data_dir is not None else []
    if from_environment := os.environ.get("SPARSYEDGE_DATA"):
        named.append(Path(from_environment))
    return list(dict.fromkeys(folder.expanduser() for folder in (*named, _cache_folder())))


def _cache_folder() -> Path:
    return Path.home() / ".cache" / "sparsyedge"


@dataclass(frozen=True)
class KnownDataset:
    """A data set built into sparsyedge."""

    form: Form
    """Known without the data: models are often exported on a machine without it."""
    load: Callable[[Path | None], Dataset]
    archive: Archive | None = None
    """The download from its official site; None if it comes with a Python package."""


DATASETS: dict[str, KnownDataset] = {
    "digits": KnownDataset(Form((3, 32, 32), 10, DIGIT_NAMES), lambda _: read_digits()),
    "cifar10": KnownDataset(CIFAR10.form, partial(load_cifar, CIFAR10), CIFAR10.archive),
    "cifar100": KnownDataset(CIFAR100.form, partial(load_cifar, CIFAR100), CIFAR100.archive),
    "speech_commands": KnownDataset(
        Form((1, 1, 8000), 35, SPEECH_WORDS, "int16"), partial(load_speech, "speech_commands"), SPEECH_ARCHIVE
    ),
    "speech_commands_mel": KnownDataset(
        Form((1, 40, 98), 35, SPEECH_WORDS, "float32"),
        partial(load_speech, "speech_commands_mel", mel=True),
        SPEECH_ARCHIVE,
    ),
}
