"""A release's file from a web store, between rounds: cut when one begins, resumed in the next break."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from sparsyedge.edge.errors import ConfigError, LinkError
from sparsyedge.edge.protocol.http_download import HttpDownload, store_context
from sparsyedge.edge.protocol.messages import Blob
from sparsyedge.edge.protocol.store_download import PATIENCE_S, SLOWEST_BYTES_PER_S
from sparsyedge.edge.protocol.store_url import parse_store_url
from sparsyedge.edge.text import one_line

__all__ = ["StoreFetch"]


class StoreFetch:
    """One file at a time, by a thread that writes nothing while the device trains."""

    def __init__(self, ca: Path | None) -> None:
        """`ca` may vouch for a store beside the system's authorities."""
        self._ca = ca
        self._thread: HttpDownload | None = None

    def fetch(self, url: str, blob: Blob, path: Path) -> Iterator[None]:
        """Append to the file at `path` what it lacks of the blob; yields while it waits. The caller checks the hash.

        Raises LinkError that says what the store did.
        """
        try:
            store = parse_store_url(url)
            context = store_context(self._ca) if store.is_tls else None
        except (ConfigError, OSError) as error:
            raise LinkError(one_line(f"cannot use the release's blob store: {error}")) from error
        if path.exists() and path.stat().st_size > blob.bytes:
            path.unlink()
        # An empty file is never asked for.
        path.touch()
        while path.stat().st_size < blob.bytes:
            thread = self._thread = HttpDownload(store, blob, path, context=context)
            thread.start()
            try:
                yield from _watch(thread, store.place, blob)
            finally:
                thread.cancel()
                was_held, self._thread = self._thread is None, None
            if thread.trouble and not was_held:
                raise LinkError(
                    f"cannot fetch {blob.sha256[:12]} from the blob store at {store.place}: {thread.trouble}"
                )
            # A file that cannot become the blob was removed.
            path.touch()

    def hold(self) -> None:
        """Cut what is on its way: a round begins."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.cancel()


def _watch(thread: HttpDownload, place: str, blob: Blob) -> Iterator[None]:
    """Wait for the thread's end, but not for a store that trickles."""
    began_s = time.monotonic()
    while not (thread.done.is_set() or thread.is_cancelled):
        if time.monotonic() - began_s > PATIENCE_S + thread.received / SLOWEST_BYTES_PER_S:
            raise LinkError(
                f"the blob store at {place} sent {thread.received} bytes of {blob.sha256[:12]} in "
                f"{time.monotonic() - began_s:.0f} s, which is too slow"
            )
        yield
