"""The device's cache on disk, kept between rounds and restarts: artifacts and models, each identified by a hash.

    artifacts/<manifest's SHA-256>/...   the files of an export; valid once its manifest is there
    models/<model id>.frame              the latest global models

Every read checks the hash. On a mismatch, the cache logs it and removes the file; the device then fetches it again.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable
from pathlib import Path

from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.storage import sha256_file, write_atomically
from sparsyedge.edge.wire.frame import read_header

__all__ = ["Cache"]

log = logging.getLogger(__name__)

# The newest is in use; the one before it serves a run that another run interrupted.
KEPT_MODELS = 2
KEPT_EXPORTS = 2


class Cache:
    """Artifacts and models under one folder, created on the first write."""

    def __init__(self, directory: Path) -> None:
        self._exports = directory / "artifacts"
        self._models = directory / "models"

    def folder(self, manifest: str) -> Path:
        """The folder for the export with this manifest; it may not exist yet."""
        return self._exports / manifest

    def has_file(self, manifest: str, name: str, *, sha256: str) -> bool:
        """Whether the export's file is there and intact; removes a damaged one."""
        path = self.folder(manifest) / name
        if not path.is_file():
            return False
        if sha256_file(path) == sha256:
            return True
        log.warning("%s does not match its hash any more; removed, it will be fetched again", path)
        path.unlink()
        return False

    def keep_file(self, manifest: str, name: str, content: bytes) -> None:
        """Add a file to an export, and delete the least recently written exports."""
        write_atomically(self.folder(manifest) / name, content)
        for folder in _all_but_newest(self._exports.iterdir(), KEPT_EXPORTS):
            shutil.rmtree(folder, ignore_errors=True)

    def model(self, model_id: str) -> bytes | None:
        """The model's frame, with its digest checked; None if absent. Removes a damaged one."""
        path = self._model_path(model_id)
        try:
            frame = path.read_bytes()
            read_header(frame)
        except FileNotFoundError:
            return None
        except FrameError as error:
            log.warning("%s is damaged (%s); removed, it will be fetched again", path, error)
            path.unlink()
            return None
        return frame

    def keep_model(self, model_id: str, frame: bytes) -> None:
        """Keep a model's frame, and delete all but the newest ones."""
        write_atomically(self._model_path(model_id), frame)
        for path in _all_but_newest(self._models.iterdir(), KEPT_MODELS):
            path.unlink(missing_ok=True)

    def drop_model(self, model_id: str) -> None:
        """Delete a model whose content does not match its id."""
        self._model_path(model_id).unlink(missing_ok=True)

    def _model_path(self, model_id: str) -> Path:
        return self._models / f"{model_id}.frame"


def _all_but_newest(paths: Iterable[Path], kept: int) -> list[Path]:
    return sorted(paths, key=lambda path: path.stat().st_mtime_ns, reverse=True)[kept:]
