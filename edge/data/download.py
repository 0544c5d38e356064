"""Archives from a data set's official site: fetched once into a cache, checked, and unpacked whole or not at all."""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import shutil
import tarfile
import tempfile
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparsyedge.edge.errors import DataError

__all__ = ["Archive", "fetch"]

log = logging.getLogger(__name__)

_PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class Archive:
    """A .tar.gz on a public server: its address, the MD5 its publisher gives, and the folder inside it."""

    url: str
    md5: str
    folder: str


def fetch(archive: Archive, files: Sequence[str], cache: Path, *, timeout_s: float = 30.0) -> Path:
    """The folder in `cache` with `files` of the archive; blocks for the download.

    `timeout_s` bounds each wait for the server, not the whole transfer. OSError where the server cannot be reached,
    DataError where what it sends is not the archive.
    """
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / archive.folder
    # Beside the target, since a rename must not cross file systems; removed whatever happens.
    with tempfile.TemporaryDirectory(dir=cache, prefix=f".{archive.folder}.") as temporary:
        tarball = Path(temporary) / "archive.tar.gz"
        unpacked = Path(temporary) / archive.folder
        log.info("downloading %s to %s", archive.url, cache)
        _download(archive, tarball, timeout_s)
        _unpack(archive, tarball, files, unpacked)
        try:
            unpacked.rename(target)
        except OSError:
            # Another process of this machine was faster; its copy passed the same check.
            if not target.is_dir():
                raise
    return target


def _download(archive: Archive, path: Path, timeout_s: float) -> None:
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with urllib.request.urlopen(archive.url, timeout=timeout_s) as response, path.open("wb") as file:
            while piece := response.read(_PIECE_BYTES):
                digest.update(piece)
                file.write(piece)
    except http.client.HTTPException as error:
        raise OSError(f"the transfer broke off: {error!r}") from error
    if digest.hexdigest() != archive.md5:
        raise DataError(
            f"{archive.url} has MD5 {digest.hexdigest()}, its publisher gives {archive.md5}; the transfer was cut or "
            "altered on the way: try again, or unpack a copy that you trust by hand"
        )


def _unpack(archive: Archive, tarball: Path, files: Sequence[str], folder: Path) -> None:
    """Write the named members to names of our own, so that no path in the archive is ever followed."""
    folder.mkdir()
    try:
        with tarfile.open(tarball, mode="r:gz") as tar:
            for name in files:
                content = tar.extractfile(f"{archive.folder}/{name}")
                if content is None:
                    raise DataError(f"{archive.folder}/{name} in {archive.url} is not a regular file")
                with content, (folder / name).open("wb") as file:
                    shutil.copyfileobj(content, file, _PIECE_BYTES)
                    file.flush()
                    os.fsync(file.fileno())
    except (KeyError, tarfile.TarError, EOFError) as error:
        raise DataError(
            f"{archive.url} does not hold {archive.folder}/ with {', '.join(files)} ({error}); unpack a copy by hand"
        ) from error
