"""A device's model for predictions on disk: one folder per version, and a link that says which one is in use.

    model/current -> digits-0007-3f2a9c01b4d5      what to predict with; replaced by a rename, so it is always whole
    model/previous -> digits-0006-90b1...          the version before
    model/digits-0007-3f2a9c01b4d5/...             the files of a version, complete before the link names it

A process that dies at any moment leaves the old version in use or the new one, never a mix of their files.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from sparsyedge.edge.faults import crash_point
from sparsyedge.edge.storage import UNFINISHED, sync_directory, write_atomically

__all__ = ["ModelShelf"]

CURRENT = "current"
PREVIOUS = "previous"
TOLD = "told"
"""Holds the name of the version that was announced last."""


class ModelShelf:
    """The versions of one model; a single thread writes, anyone may read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def current(self) -> Path:
        """Where the version in use is, if there is one; stays the same when the version changes."""
        return self.folder / CURRENT

    @property
    def version(self) -> str | None:
        """The name of the version in use; None if there is none."""
        name = self._target(CURRENT)
        return name if name and (self.folder / name).is_dir() else None

    def put(self, name: str, fill: Callable[[Path], None]) -> None:
        """Make a version and use it from now on; `fill` writes its files into an empty folder.

        If `fill` raises, the version in use stays.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._sweep()
        before = self._target(CURRENT)
        if name != before:
            self._make(name, fill)
            if before is not None:
                self._point(PREVIOUS, before)
            crash_point("before-swap")
            self._point(CURRENT, name)
            crash_point("after-swap")
        self._sweep()

    @property
    def told(self) -> str | None:
        """The version that was announced last; None if none was."""
        path = self.folder / TOLD
        return path.read_text(encoding="utf-8") if path.is_file() else None

    def tell(self, name: str) -> None:
        """Note that a version is announced; any thread may."""
        write_atomically(self.folder / TOLD, name.encode())

    def _make(self, name: str, fill: Callable[[Path], None]) -> None:
        finished, unfinished = self.folder / name, self.folder / f".{name}{UNFINISHED}"
        unfinished.mkdir()
        try:
            fill(unfinished)
            sync_directory(unfinished)
            unfinished.rename(finished)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        sync_directory(self.folder)

    def _point(self, link: str, name: str) -> None:
        """Make a link name a version; a rename replaces the old link as one."""
        fresh = self.folder / f".{link}{UNFINISHED}"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(name, target_is_directory=True)
        fresh.replace(self.folder / link)
        sync_directory(self.folder)

    def _target(self, link: str) -> str | None:
        try:
            return (self.folder / link).readlink().name
        except OSError:
            return None

    def _sweep(self) -> None:
        """Remove versions that no link names, and what killed writers left."""
        kept = {self._target(CURRENT), self._target(PREVIOUS)}
        for path in self.folder.iterdir():
            if path.is_dir() and not path.is_symlink() and path.name not in kept:
                shutil.rmtree(path)
            elif path.name.startswith(".") and path.name.endswith(UNFINISHED):
                path.unlink(missing_ok=True)
