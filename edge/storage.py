"""Files that are complete or absent: written under a temporary name, synced, then renamed."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sparsyedge.edge.faults import crash_point

__all__ = [
    "make_private_folder",
    "private_files",
    "remove_leftovers",
    "sha256_file",
    "sync_directory",
    "write_atomically",
    "write_pieces_atomically",
]

UNFINISHED = ".part"


def write_atomically(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write `content` to `path`; a crash at any moment leaves the old file or the new one, never a part.

    Only the owner can read a `private` file, from the moment it exists.
    """
    half = len(content) // 2
    view = memoryview(content)
    write_pieces_atomically(path, (view[:half], view[half:]), private=private)


def write_pieces_atomically(path: Path, pieces: Iterable[bytes | memoryview], *, private: bool = False) -> None:
    """Like write_atomically, for content too large to hold in memory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=UNFINISHED)
    try:
        with os.fdopen(handle, "wb") as file:
            for index, piece in enumerate(pieces):
                file.write(piece)
                file.flush()
                if index == 0:
                    crash_point("half-written")
            # mkstemp makes files that only the owner can read; other results follow the user's umask.
            if not private:
                os.fchmod(file.fileno(), 0o666 & ~_umask())
            os.fsync(file.fileno())
        crash_point("before-rename")
        Path(temporary).replace(path)
        crash_point("after-rename")
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


@contextmanager
def private_files() -> Iterator[None]:
    """Make every file created inside the block readable by its owner alone, SQLite's files included."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def make_private_folder(path: Path) -> None:
    """Make a folder that only its owner can enter; leave an existing folder's mode alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)


def remove_leftovers(directory: Path) -> None:
    """Remove temporary files and folders of killed writers below `directory`; nobody else may be writing there."""
    for path in list(directory.rglob(f".*{UNFINISHED}")):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def sha256_file(path: Path) -> str:
    """The SHA-256 of a file in hex, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _umask() -> int:
    """The process's umask. The only way to read it is to set it."""
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def sync_directory(directory: Path) -> None:
    """Make a rename durable: the directory holds the entry and needs its own sync."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
