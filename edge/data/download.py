"""Archives from a data set's official site: downloaded once into a cache, checked, and unpacked whole or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import logging
import os
import shutil
import tarfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sparsyedge.edge.errors import DataError

__all__ = ["Archive", "fetch"]

log = logging.getLogger(__name__)

_PIECE_BYTES = 1 << 20
_SLOWEST_BYTES_PER_S = 10_000
_PATIENCE = 10
"""We give up on a transfer that is slower than that for this many times `timeout_s`."""


@dataclass(frozen=True)
class Archive:
    """A .tar.gz on a public server: its address, its published size and checksum, and its folder in the cache."""

    url: str
    checksum: str
    """The publisher's checksum: the algorithm, a colon, and the digest in hex."""
    folder: str
    size_bytes: int
    unpacked_bytes: int
    """The most space that its files take on a disk."""
    bare: bool = False
    """Whether the archive lacks a top-level `folder` of its own."""


def fetch(archive: Archive, files: Collection[str] | None, cache: Path, *, timeout_s: float = 30.0) -> Path:
    """The folder in `cache` with `files` of the archive, or all of them; blocks for the download.

    `timeout_s` limits each wait for the server, not the whole transfer; a transfer that only trickles fails, too. If
    another process is fetching the same archive, waits for it. Raises OSError if the server is unreachable or the disk
    too small, DataError if the download is not the archive.
    """
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / archive.folder
    with _own_folder(archive, cache) as own:
        # Another process on this machine was faster; its copy passed the same check.
        if target.is_dir() and any(target.iterdir()):
            return target
        _check_room(archive, cache)
        # A warning, because it may take an hour, and most commands show nothing below a warning.
        size, unpacked = _megabytes(archive.size_bytes), _megabytes(archive.unpacked_bytes)
        log.warning("downloading %s (%s, and %s more once unpacked) to %s", archive.url, size, unpacked, cache)
        _download(archive, own / "archive.tar.gz", timeout_s)
        _unpack(archive, own / "archive.tar.gz", files, own / archive.folder)
        # All at once: syncing 100,000 clips one by one keeps an SD card busy for an hour.
        os.sync()
        (own / archive.folder).rename(target)
    return target


@contextmanager
def _own_folder(archive: Archive, cache: Path) -> Iterator[Path]:
    """An empty folder that no other process uses; removed after the block, whatever happens in it."""
    # Beside the target: a rename must not cross file systems.
    folder = cache / f".{archive.folder}.part"
    # The lock file stays: if we removed it, two processes could lock two files of the same name.
    with (cache / f".{archive.folder}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.warning("another process downloads %s; waiting for it", archive.url)
            # This wait ends: the other process has its own time limits, and the kernel frees the lock if it dies.
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            # Left by a killed process.
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _check_room(archive: Archive, cache: Path) -> None:
    """Refuse a download that would fill the disk, before spending an hour on it."""
    needed, free = archive.size_bytes + archive.unpacked_bytes, shutil.disk_usage(cache).free
    if free < needed:
        raise OSError(f"it needs {_megabytes(needed)} there, but only {_megabytes(free)} are free")


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"


def _download(archive: Archive, path: Path, timeout_s: float) -> None:
    algorithm, _, wanted = archive.checksum.partition(":")
    digest, received = hashlib.new(algorithm, usedforsecurity=False), 0
    try:
        with urllib.request.urlopen(archive.url, timeout=timeout_s) as response, path.open("wb") as file:
            for piece in _pieces(response, _PATIENCE * timeout_s):
                digest.update(piece)
                file.write(piece)
                received += len(piece)
                # An endless response must not fill the disk; the check below refuses it.
                if received > archive.size_bytes:
                    break
    except urllib.error.HTTPError as error:
        error.close()  # it is a response as well, and holds the connection
        raise
    except http.client.HTTPException as error:
        raise OSError(f"the transfer broke off: {error!r}") from error
    if digest.hexdigest() != wanted:
        raise DataError(
            f"{archive.url} sent {received} bytes with {algorithm} {digest.hexdigest()}, its publisher gives "
            f"{archive.size_bytes} bytes with {wanted}; the transfer was cut or altered on the way: try again, or "
            "unpack a copy that you trust by hand"
        )


def _pieces(response: http.client.HTTPResponse, patience_s: float) -> Iterator[bytes]:
    """The response as it arrives. Raises TimeoutError if it trickles: single bytes keep the socket's timeout at bay."""
    since, received = time.monotonic(), 0
    # read1, not read: read would wait for a whole piece, and we could not check the clock.
    while piece := response.read1(_PIECE_BYTES):
        yield piece
        received += len(piece)
        if (waited_s := time.monotonic() - since) > patience_s:
            if received < _SLOWEST_BYTES_PER_S * waited_s:
                raise TimeoutError(f"the server sent {received} bytes in the last {waited_s:.0f} s")
            since, received = time.monotonic(), 0


def _unpack(archive: Archive, tarball: Path, files: Collection[str] | None, folder: Path) -> None:
    """Write the regular files in `files`, or all, below `folder`; tarfile's own filter is too new for Debian 12."""
    folder.mkdir()
    missing = set(files or ())
    try:
        with tarfile.open(tarball, mode="r:gz") as tar:
            # In archive order: seeking back in a .gz means starting over.
            for member in tar:
                name = _name_inside(archive, member.name)
                if member.isdir() or (files is not None and name not in missing):
                    continue
                if name is None:
                    raise DataError(f"{member.name} in {archive.url} leads out of its folder; nothing was unpacked")
                _write_member(archive, tar, member, folder / name)
                missing.discard(name)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DataError(f"{archive.url} does not hold a .tar.gz ({error}); unpack a copy by hand") from error
    if missing:
        raise DataError(
            f"{archive.url} does not hold {', '.join(sorted(missing))} in {archive.folder}/; unpack a copy by hand"
        )


def _name_inside(archive: Archive, name: str) -> str | None:
    """A member's path below the target folder, or None if it lies outside."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        return None
    if archive.bare:
        return str(path)
    return str(path.relative_to(archive.folder)) if path.parts[:1] == (archive.folder,) else None


def _write_member(archive: Archive, tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    # Never a link: a later member could write through it.
    if not member.isreg() or (content := tar.extractfile(member)) is None:
        raise DataError(f"{member.name} in {archive.url} is not a regular file; nothing was unpacked")
    path.parent.mkdir(parents=True, exist_ok=True)
    with content, path.open("wb") as file:
        shutil.copyfileobj(content, file, _PIECE_BYTES)
