"""A blob from a store on the web: its address checked, bounded in time, its hash checked. Nothing is trusted."""

from __future__ import annotations

import hashlib
import ssl
import time
from collections.abc import Callable
from pathlib import Path

from sparsyedge.edge.errors import ConfigError, LinkError
from sparsyedge.edge.protocol.http_download import HttpDownload, store_context
from sparsyedge.edge.protocol.messages import Blob
from sparsyedge.edge.protocol.store_url import StoreAddress, parse_store_url
from sparsyedge.edge.text import one_line

__all__ = ["download"]

TICK_S = 0.05
PATIENCE_S = 20.0
"""How long a store may take beyond what its bytes have earned."""
SLOWEST_BYTES_PER_S = 8 * 1024
"""Each byte earns this much time: a trickle cannot hold a device much longer than silence can."""
LONGEST_S = 600.0
"""The most time for one blob, as for one in chunks."""


def download(
    url: str,
    blob: Blob,
    folder: Path,
    *,
    ca: Path | None = None,
    wait: Callable[[], None] = lambda: None,
    count: Callable[[int], None] = lambda received: None,
) -> bytes:
    """The blob from a store, resumed from what `folder` has of it; raises LinkError that says what the store did.

    Calls `wait` all the time, which may raise to abandon the download, and `count` with the bytes that came.
    """
    try:
        store = parse_store_url(url)
        context = store_context(ca) if store.is_tls else None
    except (ConfigError, OSError) as error:
        raise LinkError(one_line(f"cannot use the task's blob store: {error}")) from error
    path = folder / blob.sha256
    _make_way(folder, path)
    was_begun = path.exists()
    content = _attempt(store, blob, path, context, wait, count)
    if content is None and was_begun:
        # A crash may have damaged what was there before.
        content = _attempt(store, blob, path, context, wait, count)
    if content is None:
        raise LinkError(f"the blob store at {store.place} has other bytes under {blob.sha256[:12]} than were announced")
    return content


def _make_way(folder: Path, path: Path) -> None:
    """Remove what is left of other blobs: nobody will ask for those again."""
    folder.mkdir(parents=True, exist_ok=True)
    for other in folder.iterdir():
        if other != path:
            other.unlink(missing_ok=True)


def _attempt(
    store: StoreAddress,
    blob: Blob,
    path: Path,
    context: ssl.SSLContext | None,
    wait: Callable[[], None],
    count: Callable[[int], None],
) -> bytes | None:
    """Fetch what is missing; None if the whole does not match the hash. The file stays only if it may be resumed."""
    if path.exists() and path.stat().st_size > blob.bytes:
        path.unlink()
    thread = HttpDownload(store, blob, path, context=context)
    started_s = time.monotonic()
    thread.start()
    try:
        while not thread.done.wait(TICK_S):
            wait()
            allowed_s = min(LONGEST_S, PATIENCE_S + thread.received / SLOWEST_BYTES_PER_S)
            if time.monotonic() - started_s > allowed_s:
                raise LinkError(
                    f"the blob store at {store.place} sent {thread.received} bytes of {blob.sha256[:12]} in "
                    f"{time.monotonic() - started_s:.0f} s, which is too slow"
                )
    finally:
        thread.cancel()
        count(thread.received)
    if thread.trouble:
        raise LinkError(f"cannot fetch {blob.sha256[:12]} from the blob store at {store.place}: {thread.trouble}")
    content = path.read_bytes() if blob.bytes else b""
    path.unlink(missing_ok=True)
    return content if hashlib.sha256(content).hexdigest() == blob.sha256 else None
