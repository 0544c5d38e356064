"""One blob from a web server that nobody trusts, in a thread of its own: into a file, resumed where it was cut.

The thread may hang where Python gives us no limit (looking up a name, a server that sends headers for ever), so the
caller watches it and cancels it. It follows no redirect and sends no credentials. Whoever reads the file checks its
hash.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import ssl
import threading
from pathlib import Path

from sparsyedge.edge.protocol.messages import Blob
from sparsyedge.edge.protocol.store_url import StoreAddress
from sparsyedge.edge.text import one_line

__all__ = ["HttpDownload", "store_context"]

SILENCE_S = 10.0
"""How long a server may send nothing, for connecting and for each read."""
FRUITLESS_ATTEMPTS = 3
"""Attempts in a row that brought nothing new."""
RETRY_S = 0.5
PIECE_BYTES = 64 * 1024
MAX_REASON = 120
SPARE_BYTES = 1 << 20
"""A server that cannot resume sends bytes again; at most as many as the blob has, and these."""
SOON_AGAIN = frozenset({408, 429, 500, 502, 503, 504})
"""Answers of a server that may recover in a moment."""

_CONTENT_RANGE = re.compile(r"bytes (\d{1,12})-(\d{1,12})/(\d{1,12}|\*)")


class _Hopeless(Exception):
    """The server's answer cannot become the blob; asking again would not help."""


class _Later(Exception):
    """The server does not answer now; what has arrived may still be of use."""


def store_context(ca: Path | None) -> ssl.SSLContext:
    """A context that trusts the system's authorities and, if given, the fleet's own; it presents no certificate."""
    context = ssl.create_default_context()
    if ca is not None:
        context.load_verify_locations(cafile=ca)
    return context


class HttpDownload(threading.Thread):
    """Appends to the file at `path` until it has the blob's bytes; wait for `done`, then look at `trouble`."""

    def __init__(self, store: StoreAddress, blob: Blob, path: Path, *, context: ssl.SSLContext | None) -> None:
        # A daemon: a thread that hangs in the system's resolver must not keep the process from ending.
        super().__init__(name=f"blob-{blob.sha256[:12]}", daemon=True)
        self.done = threading.Event()
        self.trouble = ""
        """Why the file is incomplete; empty if it is complete."""
        self.received = 0
        """Bytes of bodies so far, those of lost attempts included."""
        self._store = store
        self._blob = blob
        self._path = path
        self._context = context
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        """Held while writing, so that nothing is written after `cancel` has returned."""
        self._connection: http.client.HTTPConnection | None = None

    @property
    def is_cancelled(self) -> bool:
        """Whether it was told to stop."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Stop soon, and write nothing from now on."""
        with self._lock:
            self._cancelled.set()
        connection = self._connection
        if connection is not None and isinstance(connection.sock, socket.socket):
            # The plain socket's: that of a TLS socket would change the object under the thread that reads from it.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)

    def run(self) -> None:
        try:
            self._fetch()
        except _Hopeless as error:
            self.trouble = str(error)
            with self._lock:
                if not self._cancelled.is_set():
                    self._path.unlink(missing_ok=True)
        except _Later as error:
            self.trouble = str(error)
        except Exception as error:  # a thread has nobody to raise to
            self.trouble = one_line(f"{type(error).__name__}: {error}", MAX_REASON)
        finally:
            self.done.set()

    # ---- attempts ----------------------------------------------------------------------------------------------------

    def _fetch(self) -> None:
        fruitless, most = 0, self._have()
        while self._have() < self._blob.bytes:
            trouble = self._try_once()
            if self._have() > most:
                fruitless, most = 0, self._have()
                continue
            fruitless += 1
            if fruitless == FRUITLESS_ATTEMPTS:
                raise _Later(trouble)
            if self._cancelled.wait(RETRY_S * fruitless):
                raise _Later("given up")

    def _try_once(self) -> str:
        """Ask for what is missing; returns what went wrong, if it may pass."""
        try:
            self._ask()
        except (OSError, http.client.HTTPException, _Later) as error:
            # A server chooses some of this text.
            return one_line(str(error), MAX_REASON) or type(error).__name__
        finally:
            if self._connection is not None:
                self._connection.close()
        return "the connection ended too early"

    def _ask(self) -> None:
        have, store = self._have(), self._store
        connection = (
            http.client.HTTPSConnection(store.host, store.port, timeout=SILENCE_S, context=self._context)
            if store.is_tls
            else http.client.HTTPConnection(store.host, store.port, timeout=SILENCE_S)
        )
        self._connection = connection
        if self._cancelled.is_set():
            raise _Later("given up")
        headers = {"Accept-Encoding": "identity", "Connection": "close"}
        if have:
            headers["Range"] = f"bytes={have}-{self._blob.bytes - 1}"
        connection.request("GET", f"{store.path}/{self._blob.sha256}", headers=headers)
        response = connection.getresponse()
        if response.status in SOON_AGAIN:
            raise _Later(f"it answers {response.status}")
        start = self._check(response, have)
        self._store_body(response, start)

    def _check(self, response: http.client.HTTPResponse, have: int) -> int:
        """Where the body begins; raises _Hopeless if it cannot be a part of the blob."""
        if response.status not in (200, 206):
            hint = "; devices follow no redirect" if 300 <= response.status < 400 else ""
            raise _Hopeless(f"it answers {response.status}{hint}")
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            raise _Hopeless(f"it sends the encoding {encoding[:20]!r}, which nobody asked for")
        if response.status == 200:
            return self._check_length(response, 0)
        sent = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if sent is None or int(sent[1]) != have or sent[3] not in ("*", str(self._blob.bytes)):
            shown = response.headers.get("Content-Range", "")[:60]
            raise _Hopeless(f"it sends the range {shown!r}, and bytes from {have} of {self._blob.bytes} were asked for")
        return self._check_length(response, have)

    def _check_length(self, response: http.client.HTTPResponse, start: int) -> int:
        expected = self._blob.bytes - start
        if response.length is not None and response.length != expected:
            raise _Hopeless(f"it has {response.length} bytes to send, and {expected} were announced")
        return start

    # ---- the file ----------------------------------------------------------------------------------------------------

    def _have(self) -> int:
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def _store_body(self, response: http.client.HTTPResponse, start: int) -> None:
        left = self._blob.bytes - start
        with self._path.open("ab" if start else "wb") as file:
            while left and (piece := response.read1(min(PIECE_BYTES, left))):
                with self._lock:
                    if self._cancelled.is_set():
                        raise _Later("given up")
                    file.write(piece)
                    file.flush()
                left -= len(piece)
                self.received += len(piece)
                if self.received > 2 * self._blob.bytes + SPARE_BYTES:
                    raise _Hopeless(f"it has sent {self.received} bytes for {self._blob.bytes}")
