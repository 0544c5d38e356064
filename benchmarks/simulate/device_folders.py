"""The files of simulated devices that train on another machine: kept in the run's folder, lent out for a turn.

A device's folder goes to the worker with its turn. Before anything that the device sends, the worker sends back the
files that have changed since; so the run's folder is never behind what the coordinator knows, as the disk of a real
device is not. A worker that dies takes nothing with it, and any other can repeat the turn.

Frames of models are the same for all devices: they travel by name, and the run's folder holds one copy of each.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sparsyedge.edge.errors import RunError
from sparsyedge.edge.storage import write_atomically

__all__ = ["DeviceFolders", "FileChanges", "LentFolder", "TurnFiles"]

ROOMS = ("models", "optimizer", "outbox")
_PLAUSIBLE = re.compile(rf"({'|'.join(ROOMS)})/[A-Za-z0-9_-][A-Za-z0-9._-]*")
_MODEL = re.compile(r"models/([0-9a-f]+)\.frame")
# Like a device's folder, so that the hub removes old models from it too.
SHARED = "shared"


class FileChanges(msgspec.Struct, frozen=True, tag="files"):
    """From a worker: what has changed in its device's folder."""

    device: str
    changed: dict[str, bytes | None]
    """By path in the folder; None stands for a model that the run's folder holds already."""
    removed: list[str]


@dataclass(frozen=True)
class TurnFiles:
    """A device's folder as its last turn left it."""

    files: dict[str, bytes]
    """All but the models, by path."""
    models: list[str]
    """The paths of its models, the oldest first."""


class DeviceFolders:
    """The folders of all devices, at home in the run's folder."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, device: str) -> TurnFiles:
        """What a worker needs to play the device."""
        folder = self._directory / device
        found = sorted((path.stat().st_mtime_ns, name, path) for name, path in _files(folder).items())
        files = {name: path.read_bytes() for _, name, path in found if not _MODEL.fullmatch(name)}
        return TurnFiles(files, [name for _, name, _ in found if _MODEL.fullmatch(name)])

    def shared_models(self) -> list[str]:
        """The paths of the models that need not travel."""
        return [name for name in _files(self._directory / SHARED) if _MODEL.fullmatch(name)]

    def shared_model(self, name: str, *, of: str) -> bytes:
        """The frame of a model of device `of`."""
        shared = self._directory / SHARED / name
        if not shared.is_file():  # its run began on another engine
            self._share(name, (self._directory / of / name).read_bytes())
        return shared.read_bytes()

    def apply(self, changes: FileChanges) -> None:
        """Bring a device's folder up to date; raises RunError for paths that no device writes."""
        folder = self._directory / changes.device
        for name in (*changes.changed, *changes.removed):
            if not _PLAUSIBLE.fullmatch(name):
                raise RunError(f"a worker sent the file {name[:80]!r}, which no device has; is it another sparsyedge?")
        for name, content in changes.changed.items():
            if not _MODEL.fullmatch(name):
                write_atomically(folder / name, content or b"")
            elif content is not None or (self._directory / SHARED / name).is_file():
                self._link(name, folder / name, content)
        for name in changes.removed:
            (folder / name).unlink(missing_ok=True)

    def _link(self, name: str, path: Path, content: bytes | None) -> None:
        if content is not None and not (self._directory / SHARED / name).is_file():
            self._share(name, content)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.hardlink_to(self._directory / SHARED / name)

    def _share(self, name: str, content: bytes) -> None:
        write_atomically(self._directory / SHARED / name, content)


class LentFolder:
    """A device's folder at a worker, for one turn."""

    def __init__(self, folder: Path, *, artifacts: Path) -> None:
        """`artifacts` is the folder that the devices of a machine share."""
        self._folder = folder
        self._artifacts = artifacts
        self._known: frozenset[str] = frozenset()
        self._seen: dict[str, tuple[int, int]] = {}

    def fill(self, turn: TurnFiles, frames: list[bytes], *, known: frozenset[str]) -> None:
        """Write the device's files; `known` are the models that the run's folder holds."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if not (link := self._folder / "artifacts").is_symlink():
            link.symlink_to(self._artifacts, target_is_directory=True)
        for name, content in (*turn.files.items(), *zip(turn.models, frames, strict=True)):
            path = self._folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        self._known = known
        self._seen = self._look()

    def changes(self) -> FileChanges | None:
        """What has changed since the last call; None if nothing has."""
        found = self._look()
        changed = [name for name, state in found.items() if self._seen.get(name) != state]
        removed = [name for name in self._seen if name not in found]
        self._seen = found
        if not changed and not removed:
            return None
        contents = {name: None if name in self._known else (self._folder / name).read_bytes() for name in changed}
        return FileChanges(self._folder.name, contents, removed)

    def remove(self) -> None:
        """The turn is over. The way to the artifacts stays: the worker's session reads them there."""
        for room in ROOMS:
            shutil.rmtree(self._folder / room, ignore_errors=True)

    def _look(self) -> dict[str, tuple[int, int]]:
        # Devices replace whole files, so a changed one is another inode.
        states = ((name, path.stat()) for name, path in _files(self._folder).items())
        return {name: (state.st_ino, state.st_mtime_ns) for name, state in states}


def _files(folder: Path) -> dict[str, Path]:
    """A device's files by their path in the folder; artifacts and unfinished files do not count."""
    found: dict[str, Path] = {}
    for room in ROOMS:
        place = folder / room
        if place.is_dir():
            found |= {f"{room}/{entry.name}": Path(entry.path) for entry in os.scandir(place) if entry.name[0] != "."}
    return found
