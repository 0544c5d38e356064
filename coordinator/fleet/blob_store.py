"""A run's blobs on a web server: put there under their SHA-256, and removed when the run needs them no more.

Each run has a folder of its own, so two runs with the same artifacts do not remove each other's. A list in the run
directory says what we have put, and is written first: after a kill, the resumed run removes what it no longer needs,
and nothing that it has not put itself.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from sparsyedge.coordinator.blobs_config import BlobsConfig
from sparsyedge.coordinator.fleet.blob_shelves import Shelf, ShelfError, open_shelf
from sparsyedge.edge.errors import ConfigError, LinkError, RunError
from sparsyedge.edge.protocol.chunks import blob_of
from sparsyedge.edge.protocol.messages import Blob
from sparsyedge.edge.protocol.store_download import download
from sparsyedge.edge.storage import write_atomically

__all__ = ["BlobStore", "probe"]

log = logging.getLogger(__name__)

LEDGER_NAME = "blobs.json"


class Ledger(msgspec.Struct, frozen=True):
    """What a run has put, and where."""

    put: str
    folder: str
    names: tuple[str, ...] = ()


class BlobStore:
    """What this run offers over HTTP."""

    def __init__(self, config: BlobsConfig, *, run: str, run_dir: Path) -> None:
        """Takes up the list that an earlier process of this run has left."""
        self._config = config
        self._shelf: Shelf = open_shelf(config.put)
        self._path = run_dir / LEDGER_NAME
        left = self._read()
        if left is not None and left.put != config.put:
            log.warning("`blobs.put` has changed; what this run has put in %s/%s stays there", left.put, left.folder)
            left = None
        self._folder = left.folder if left else f"{run}-{secrets.token_hex(4)}"
        self._names = set(left.names) if left else set[str]()
        self._pending: dict[str, Callable[[], bytes]] = {}
        self._is_down = False

    @property
    def url(self) -> str:
        """The folder that devices fetch from."""
        return f"{self._config.url.rstrip('/')}/{self._folder}"

    @property
    def has_fallback(self) -> bool:
        """Whether the broker must have the same blobs."""
        return self._config.fallback

    def offer(self, blob: Blob, read: Callable[[], bytes]) -> None:
        """Put a blob there with the next `flush`, even if it was there before: somebody may have damaged it."""
        self._pending[blob.sha256] = read

    def flush(self) -> bool:
        """Put what was offered; returns whether all of it is there.

        Without a fallback a store that fails ends the run: raises RunError.
        """
        if set(self._pending) - self._names:
            self._names |= set(self._pending)
            self._write()
        try:
            for name, read in list(self._pending.items()):
                self._shelf.put(self._folder, name, read())
                del self._pending[name]
        except ShelfError as error:
            if not self.has_fallback:
                raise RunError(
                    f"cannot put a blob in {error}; repair the store and start again, or set `blobs.fallback`"
                ) from error
            if not self._is_down:
                log.warning("cannot put a blob in %s; devices fetch from the broker until that works again", error)
            self._is_down = True
            return False
        if self._is_down:
            log.info("the blob store takes blobs again")
        self._is_down = False
        return True

    def keep_only(self, blobs: set[str]) -> None:
        """Remove what this run has put, except the blobs with these hashes."""
        for name in set(self._pending) - blobs:
            del self._pending[name]
        unwanted = self._names - blobs
        if not unwanted:
            return
        try:
            for name in sorted(unwanted):
                self._shelf.remove(self._folder, name)
                self._names.discard(name)
        except ShelfError as error:
            log.warning("cannot remove an old blob from %s; trying again with the next round", error)
        if not self._names:
            self._shelf.close(self._folder)
        self._write()

    def _read(self) -> Ledger | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Ledger)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            log.warning("%s is damaged (%s); what this run has put before stays in the store", self._path, error)
            return None

    def _write(self) -> None:
        if not self._names:
            self._path.unlink(missing_ok=True)
            return
        ledger = Ledger(self._config.put, self._folder, tuple(sorted(self._names)))
        write_atomically(self._path, msgspec.json.encode(ledger))


def probe(config: BlobsConfig, *, ca: Path | None = None) -> None:
    """Put a few bytes, fetch them as a device does, and remove them.

    Raises ConfigError if they cannot be put. Only warns if they cannot be fetched: devices may see another network.
    """
    shelf, folder, content = open_shelf(config.put), f"probe-{secrets.token_hex(8)}", secrets.token_bytes(32)
    name = hashlib.sha256(content).hexdigest()
    try:
        shelf.put(folder, name, content)
        with tempfile.TemporaryDirectory() as scratch:
            download(f"{config.url.rstrip('/')}/{folder}", blob_of(content), Path(scratch), ca=ca)
    except ShelfError as error:
        raise ConfigError(f"key `blobs.put`: cannot put anything in {error}; give the coordinator access") from error
    except LinkError as error:
        log.warning("what the coordinator puts in %s cannot be fetched at `blobs.url` from here: %s", config.put, error)
    finally:
        try:
            shelf.remove(folder, name)
            shelf.close(folder)
        except ShelfError as error:
            log.warning("cannot remove a probe from %s", error)
