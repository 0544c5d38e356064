"""A wheelhouse as a release: reads the lists that `flash wheelhouse` wrote, checks every file, and keeps a copy."""

from __future__ import annotations

import os
import re
import shutil
import zipfile
from pathlib import Path

from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.protocol.messages import MAX_BLOB_BYTES
from sparsyedge.edge.protocol.releases import ReleaseFile, WheelSet
from sparsyedge.edge.security.wheel_list import LIST_NAME, list_entries
from sparsyedge.edge.storage import sha256_file

__all__ = ["keep_files", "read_wheelhouse"]

CARD_MACHINE = "aarch64"
_LIST = re.compile(re.escape(LIST_NAME.format(python="")) + r"(3\.\d{1,3})(?:-([a-z0-9_]+))?")
_OURS = re.compile(r"sparsyedge-([0-9][^-]*)-.*\.whl")


def read_wheelhouse(folder: Path) -> tuple[str, tuple[WheelSet, ...]]:
    """The version of sparsyedge in a wheelhouse, and its files for each Python; raises SecurityError if they differ."""
    pairs = ((path, _LIST.fullmatch(path.name)) for path in sorted(folder.iterdir())) if folder.is_dir() else ()
    lists = [(path, match) for path, match in pairs if match]
    if not lists:
        raise SecurityError(
            f"{folder} is no wheelhouse: it has no list {LIST_NAME.format(python='3.x')}; make one with "
            f"`sparsyedge flash wheelhouse --out DIR`"
        )
    sets = tuple(_read_list(path, match[1], match[2] or CARD_MACHINE) for path, match in lists)
    versions = {match[1] for wheels in sets for file in wheels.files if (match := _OURS.fullmatch(file.name))}
    if len(versions) != 1:
        found = ", ".join(sorted(versions)) or "none"
        raise SecurityError(f"the lists of {folder} name these versions of sparsyedge: {found}; needed is one")
    return versions.pop(), sets


def keep_files(wheelhouse: Path, sets: tuple[WheelSet, ...], place: Path) -> None:
    """Copy the files to `place`, by their hash, and remove others: the wheelhouse may go away during a rollout."""
    place.mkdir(parents=True, exist_ok=True)
    wanted = {file.sha256: file for wheels in sets for file in wheels.files}
    for path in place.iterdir():
        if path.name not in wanted:
            path.unlink()
    for sha256, file in wanted.items():
        kept = place / sha256
        if kept.is_file() and sha256_file(kept) == sha256:
            continue
        unfinished = place / f".{sha256}.part"
        shutil.copyfile(wheelhouse / file.name, unfinished)
        with unfinished.open("rb") as copied:
            os.fsync(copied.fileno())
        unfinished.replace(kept)


def _read_list(path: Path, python: str, machine: str) -> WheelSet:
    files = []
    unpacked = 0
    for name, sha256 in list_entries(path.read_bytes(), str(path)).items():
        file = path.parent / name
        if not file.is_file():
            raise SecurityError(f"{path} names {name}, which is not in {path.parent}; make the wheelhouse again")
        if sha256_file(file) != sha256:
            raise SecurityError(
                f"{file} is not the file that {path.name} names: it was altered; make the wheelhouse again"
            )
        size = file.stat().st_size
        if size > MAX_BLOB_BYTES:
            raise SecurityError(f"{file} has {size} bytes, allowed are {MAX_BLOB_BYTES}")
        files.append(ReleaseFile(name=name, sha256=sha256, bytes=size))
        unpacked += _unpacked_bytes(file)
    return WheelSet(python=python, machine=machine, files=tuple(files), installed_bytes=unpacked)


def _unpacked_bytes(file: Path) -> int:
    if file.suffix != ".whl":
        return 0
    try:
        with zipfile.ZipFile(file) as wheel:
            return sum(entry.file_size for entry in wheel.infolist())
    except (OSError, zipfile.BadZipFile) as error:
        raise SecurityError(f"{file} is not a wheel that can be read: {error}; make the wheelhouse again") from error
