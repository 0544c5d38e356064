"""The wheelhouse that `flash` makes by itself and keeps: one folder per wheel of ours, made anew when that changes."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sparsyedge.edge.errors import FlashError
from sparsyedge.edge.storage import sha256_file
from sparsyedge.hardware.flash.wheelhouse import PYTHONS, collect, select

__all__ = ["CACHE", "kept_wheelhouse"]

CACHE = Path(".cache", "sparsyedge", "wheelhouse")
"""Below the user's home."""
KEPT = 3
"""Wheelhouses that stay, since another `flash` may be reading one of them; each has some 100 MB."""


def kept_wheelhouse(cache: Path, *, wheel: Callable[[], Path], say: Callable[[str], None]) -> Path:
    """The wheelhouse of the wheel that `wheel` finds or builds; collected now where it is not in the cache yet."""
    with _alone(cache):
        ours = wheel()
        version = ours.name.split("-")[1]
        folder = cache / f"{version}-{sha256_file(ours)[:12]}"
        if folder.is_dir() and _is_whole(folder):
            say(f"wheels: {folder}, up to date with {ours}")
            return folder
        say(f"collecting what {ours.name} needs on a board, some 100 MB from the package index")
        shutil.rmtree(folder, ignore_errors=True)
        wheels = collect(folder, wheel=ours)
        megabytes = sum(one.path.stat().st_size for one in wheels) / 1e6
        say(f"wheels: {folder}, {len(wheels)} for Python {' and '.join(PYTHONS)}, {megabytes:.0f} MB")
        for old in sorted(_folders(cache), key=lambda path: path.stat().st_mtime_ns)[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)
        return folder


def _is_whole(folder: Path) -> bool:
    try:
        return all(select(folder, python) for python in PYTHONS)
    except FlashError:
        return False


def _folders(cache: Path) -> Iterator[Path]:
    return (path for path in cache.iterdir() if path.is_dir() and not path.name.startswith("."))


@contextmanager
def _alone(cache: Path) -> Iterator[None]:
    """One process at a time builds and collects; the others wait and find its result."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = (cache / ".lock").open("w")
    except OSError as error:
        raise FlashError(f"cannot keep wheels in {cache}: {error.strerror}; name a folder with --wheelhouse") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
