"""Where a run's blobs lie for devices to fetch over HTTP: a folder that a web server serves, or a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sparsyedge.coordinator.blobs_config import S3
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.storage import write_atomically
from sparsyedge.edge.text import one_line

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = ["BucketShelf", "FolderShelf", "Shelf", "ShelfError", "open_shelf"]

REQUEST_S = 60
RETRIES = 3
RETRY_S = 20
"""The run waits meanwhile."""
MAX_REASON = 120
PUBLIC_FOLDER, PUBLIC_FILE = 0o755, 0o644
"""The web server is another user, and a coordinator makes private files otherwise."""


class ShelfError(Exception):
    """A shelf could not take or give up a blob; the text says where and why."""


class Shelf(Protocol):
    """Takes blobs by name, in a folder of each run; raises ShelfError."""

    def put(self, folder: str, name: str, content: bytes) -> None:
        """Keep the content, durably and under its whole name at once."""

    def remove(self, folder: str, name: str) -> None:
        """Remove a blob that we have put, if it is still there."""

    def close(self, folder: str) -> None:
        """Remove the folder once it is empty."""


def open_shelf(put: str) -> Shelf:
    """The shelf that `blobs.put` names; raises ConfigError if there is none."""
    return BucketShelf(put) if put.startswith(S3) else FolderShelf(Path(put))


class FolderShelf:
    """A folder on this machine that a web server serves."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise ConfigError(
                f"key `blobs.put` has value {str(root)!r}, which is not a folder; make it, and have the web server "
                f"serve it at `blobs.url`"
            )
        self._root = root

    def put(self, folder: str, name: str, content: bytes) -> None:
        path = self._root / folder / name
        with self._explained():
            with suppress(FileExistsError):
                path.parent.mkdir()
                path.parent.chmod(PUBLIC_FOLDER)
            write_atomically(path, content)
            path.chmod(PUBLIC_FILE)

    def remove(self, folder: str, name: str) -> None:
        with self._explained():
            (self._root / folder / name).unlink(missing_ok=True)

    def close(self, folder: str) -> None:
        with suppress(OSError):  # somebody else keeps something there
            (self._root / folder).rmdir()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ShelfError(f"the folder {self._root}: {error.strerror or error}") from error


class BucketShelf:
    """A prefix of a bucket in an S3-compatible store; the environment has its address and credentials."""

    def __init__(self, url: str, store: ObjectStore | None = None) -> None:
        """Without `store`, opens the one that the URL names."""
        try:
            from obstore.store import S3Store
        except ImportError as error:
            raise ConfigError(
                f"key `blobs.put` has value {url!r}, and obstore is not installed; "
                f"in a checkout, install it with: pip install '.[store]'"
            ) from error
        self._url = url
        with self._explained(ConfigError, "key `blobs.put`: "):
            self._store: ObjectStore = store or S3Store.from_url(
                url,
                client_options={"timeout": timedelta(seconds=REQUEST_S), "allow_http": True},
                retry_config={"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_S)},
            )

    def put(self, folder: str, name: str, content: bytes) -> None:
        with self._explained(ShelfError):
            self._store.put(f"{folder}/{name}", content)

    def remove(self, folder: str, name: str) -> None:
        with self._explained(ShelfError), suppress(FileNotFoundError):
            self._store.delete(f"{folder}/{name}")

    def close(self, folder: str) -> None:
        """Nothing to do: a bucket has no folders."""

    @contextmanager
    def _explained(self, kind: type[Exception], prefix: str = "") -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, OSError, ValueError) as error:
            raise kind(f"{prefix}{self._url}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """What an error of obstore says, without the request before it, the server's page, and a dump for programmers."""
    line = str(error).partition("\n")[0].rpartition(" - ")[2]
    return one_line(line.partition("<")[0].rstrip(": "), MAX_REASON)
