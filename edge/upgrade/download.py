"""Fetches a release's files in the breaks between rounds onto the disk, from a web store or chunk by chunk.

A round may begin at any moment and a device may lose power at any moment. So at most a few chunks are on their way at
a time, each is on disk once it is here, and the next break, or the next start, goes on with the first that is missing.
Whatever a web store has sent counts too, if it then fails: both ways write to one file.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from sparsyedge.edge.device.courier import Courier
from sparsyedge.edge.errors import LinkError, SecurityError
from sparsyedge.edge.faults import crash_point
from sparsyedge.edge.protocol.messages import Blob
from sparsyedge.edge.protocol.releases import WheelSet
from sparsyedge.edge.protocol.topics import Topics
from sparsyedge.edge.storage import sha256_file
from sparsyedge.edge.upgrade.store_fetch import StoreFetch

__all__ = ["Download", "fetched_bytes"]

log = logging.getLogger(__name__)

WINDOW = 4
"""Chunks on their way at a time."""
STALL_S = 5.0
AVOID_S = 300.0
"""How long to leave a web store alone that has failed us."""
TRIES = 3
"""How often a file is fetched whose hash comes out wrong."""
PART = ".part"


class Download:
    """The files of one set of wheels, kept under their hashes."""

    def __init__(self, courier: Courier, topics: Topics, folder: Path, *, ca: Path | None = None) -> None:
        """`ca` may vouch for a web store."""
        self._courier = courier
        self._topics = topics
        self._folder = folder
        self._store = StoreFetch(ca)
        self._avoided_until_s = 0.0

    def fetch(self, wheels: WheelSet, chunk_bytes: int, store: str = "") -> Iterator[None]:
        """Fetch what is missing; yields whenever it waits. Raises SecurityError for altered files.

        Asks the web store at the URL `store` first, and the broker while that fails.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self._avoided_until_s = 0.0 if store else math.inf
        for file in wheels.files:
            blob = file.blob(chunk_bytes)
            tries = 0
            while not self._has(blob):
                if tries == TRIES:
                    raise SecurityError(f"{file.name} does not match its hash: it was altered, {TRIES} times in a row")
                if time.monotonic() >= self._avoided_until_s:
                    yield from self._fetch_from_store(store, blob)
                else:
                    yield from self._fetch_file(blob)
                    tries += (self._folder / blob.sha256).exists()

    def hold(self) -> None:
        """Let nothing come in while the device trains, but the few chunks on their way."""
        self._store.hold()

    def keep_only(self, wheels: WheelSet) -> None:
        """Remove the files of other releases."""
        wanted = {file.sha256 for file in wheels.files} | {f"{file.sha256}{PART}" for file in wheels.files}
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            if path.name not in wanted:
                path.unlink(missing_ok=True)

    def _has(self, blob: Blob) -> bool:
        """Whether the file is there, with the right hash; removes a damaged one."""
        path = self._folder / blob.sha256
        if not path.is_file():
            return False
        if path.stat().st_size == blob.bytes and sha256_file(path) == blob.sha256:
            return True
        path.unlink()
        return False

    def _fetch_from_store(self, store: str, blob: Blob) -> Iterator[None]:
        """Fetch a file, or note that the store is to be left alone."""
        part = self._folder / f"{blob.sha256}{PART}"
        try:
            yield from self._store.fetch(store, blob, part)
            if sha256_file(part) != blob.sha256:
                part.unlink()
                raise LinkError(f"the web store has other bytes under {blob.sha256[:12]} than were signed")
        except LinkError as error:
            self._avoided_until_s = time.monotonic() + AVOID_S
            log.warning("%s; fetching from the broker, also for the next %g s", error, AVOID_S)
        else:
            part.replace(self._folder / blob.sha256)

    def _fetch_file(self, blob: Blob) -> Iterator[None]:
        """Fetch a file's chunks; ends early if none come and a web store may be asked again."""
        part = self._folder / f"{blob.sha256}{PART}"
        waiting: dict[int, bytes | None] = {}
        watched: dict[int, str] = {}
        with part.open("ab") as file:
            # A cut chunk is fetched again; so is everything, if the chunks are of another size now.
            done = file.tell() // blob.chunk_bytes
            file.truncate(done * blob.chunk_bytes)
            progress_s = time.monotonic()
            try:
                while done < blob.chunks:
                    for index in range(done, min(done + WINDOW, blob.chunks)):
                        if index not in watched:
                            watched[index] = self._topics.chunk(blob.sha256, index)
                            self._courier.watch(watched[index], partial(_take, waiting, index))
                    while waiting.get(done) is not None:
                        file.write((waiting.pop(done) or b"")[: blob.chunk_bytes])
                        file.flush()
                        crash_point("chunk-kept")
                        self._courier.unwatch(watched.pop(done))
                        done += 1
                        progress_s = time.monotonic()
                    if time.monotonic() - progress_s > STALL_S:
                        if time.monotonic() >= self._avoided_until_s:
                            return
                        for topic in watched.values():
                            self._courier.ask_again(topic)
                        progress_s = time.monotonic()
                    if done < blob.chunks:
                        yield
            finally:
                for topic in watched.values():
                    self._courier.unwatch(topic)
        part.replace(self._folder / blob.sha256)


def _take(waiting: dict[int, bytes | None], index: int, payload: bytes) -> None:
    # An empty chunk was withdrawn; a wrong one is found by the hash of the whole.
    if payload:
        waiting[index] = payload


def fetched_bytes(folder: Path, wheels: WheelSet) -> int:
    """How much of a set is on disk already."""
    paths = (folder / f"{file.sha256}{end}" for file in wheels.files for end in ("", PART))
    return sum(path.stat().st_size for path in paths if path.is_file())
