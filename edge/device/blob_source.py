"""Fetches a task's blobs: from the web server that the task names, if there is one, or else from the broker."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import UNSET

from sparsyedge.edge.compatibility import HTTP_BLOBS
from sparsyedge.edge.device.courier import Abandoned, Courier
from sparsyedge.edge.errors import LinkError
from sparsyedge.edge.protocol.messages import Blob, RoundTask
from sparsyedge.edge.protocol.store_download import download

__all__ = ["BlobSource"]

log = logging.getLogger(__name__)

AVOID_S = 300.0
"""How long to leave a store alone that has failed us, where the broker has the blobs too."""


class BlobSource:
    """A device's way to blobs; counts their bytes in the courier, whichever way they come."""

    def __init__(self, courier: Courier, folder: Path, *, ca: Path | None = None) -> None:
        """`folder` holds a download that was cut, also over a restart; `ca` may vouch for a store."""
        self._courier = courier
        self._folder = folder
        self._ca = ca
        self._avoided: dict[str, float] = {}
        """When to try a store again, by its URL."""

    def fetch(self, task: RoundTask, blob: Blob, *, wanted: Callable[[], bool]) -> bytes:
        """The blob's bytes, with their hash checked; raises as `Courier.fetch` does."""
        if task.blobs is UNSET:
            return self._courier.fetch(blob, wanted=wanted)
        if HTTP_BLOBS in (task.needs or ()):
            return self._download(task.blobs, blob, wanted)
        if time.monotonic() >= self._avoided.get(task.blobs, 0.0):
            try:
                return self._download(task.blobs, blob, wanted)
            except LinkError as error:
                self._avoided = {task.blobs: time.monotonic() + AVOID_S}
                log.warning("%s; fetching from the broker, also for the next %g s", error, AVOID_S)
        return self._courier.fetch(blob, wanted=wanted)

    def _download(self, url: str, blob: Blob, wanted: Callable[[], bool]) -> bytes:
        def wait() -> None:
            self._courier.drain()
            if not wanted():
                raise Abandoned

        def count(received: int) -> None:
            self._courier.bytes_down += received

        return download(url, blob, self._folder, ca=self._ca, wait=wait, count=count)
