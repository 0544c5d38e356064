"""An .npz file that somebody replaces while the device runs."""

from __future__ import annotations

from pathlib import Path

from sparsyedge.edge.data.checks import check
from sparsyedge.edge.data.npz import has_test_part, read_npz, read_npz_test
from sparsyedge.edge.data.source import Found, Part, compared, nothing_yet
from sparsyedge.edge.errors import DataError, UnreadableData

__all__ = ["NpzSource"]

Version = tuple[int, int, int]
UNKNOWN: Version = (-1, -1, -1)
"""Equals that of no file, so the next look reads again."""


class NpzSource:
    """One file; whatever is wrong with a new version of it, the device keeps the last good one."""

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._name = name
        self._version: Version | None = None
        self._train: Part | None = None
        self._has_test = False
        self._told = ""

    def look(self) -> Found | None:
        """Read the file again if its size, time of change or place on the disk has changed."""
        is_first = self._version is None
        try:
            version = _version(self._path)
            if version == self._version:
                return None
            self._version = version
            train = self._read()
            if _version(self._path) != version:
                self._version = UNKNOWN
                raise UnreadableData(f"{self._path} changed while it was read; write another file and rename it")
        except (DataError, OSError) as error:
            if is_first and isinstance(error, DataError) and not isinstance(error, UnreadableData):
                raise
            if isinstance(error, OSError) or self._version is None:
                self._version = UNKNOWN
            return self._kept(str(error))
        before, self._train, self._told = self._train, train, ""
        return compared(before, Found(train=train, test=self._read_test, has_test=self._has_test))

    def _kept(self, trouble: str) -> Found | None:
        """What was read before, once for each reason."""
        if trouble == self._told:
            return None
        self._told = trouble
        if self._train is None:
            return nothing_yet(trouble)
        return Found(
            train=self._train,
            test=self._read_test,
            has_test=self._has_test,
            trouble=f"{trouble}; the samples from before stay",
        )

    def _read(self) -> Part:
        dataset = read_npz(self._path, name=self._name, train_only=True)
        check(dataset, train_only=True)
        self._has_test = has_test_part(self._path)
        return Part(dataset.train, dataset.names)

    def _read_test(self) -> Part | None:
        dataset = read_npz_test(self._path, name=self._name)
        if dataset is None:
            return None
        check(dataset, train_only=True)
        return Part(dataset.train, dataset.names)


def _version(path: Path) -> Version:
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ino
