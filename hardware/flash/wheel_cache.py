"""The cache of wheelhouses that `flash` makes itself: one folder per version of our wheel."""

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
"""Relative to the user's home."""
KEPT = 3
"""How many wheelhouses to keep, since another `flash` may be reading one; each takes some 100 MB."""


def kept_wheelhouse(cache: Path, *, wheel: Callable[[], Path], say: Callable[[str], None]) -> Path:
    """The wheelhouse for the wheel that `wheel` finds or builds; collects it now if it is not cached yet."""
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
    """Let one process at a time build and collect; the others wait, then use its result."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = (cache / ".lock").open("w")
    except OSError as error:
        raise FlashError(f"cannot keep wheels in {cache}: {error.strerror}; name a folder with --wheelhouse") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
