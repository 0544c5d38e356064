"""Brings what changed to every open browser: one look at the files for all of them, and none if nobody watches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from sparsyedge.coordinator.web.picture import Document, RunPicture

__all__ = ["MAX_CLIENTS", "Hub"]

log = logging.getLogger(__name__)

EVERY_S = 0.5
BEAT_S = 10.0
"""A browser that hears nothing for longer than this and a bit knows that the connection is lost."""
MAX_CLIENTS = 64
MAX_WAITING = 16
"""Messages that a slow browser may be behind before it gets everything anew instead."""

BEAT = b"event: beat\ndata: {}\n\n"


class _Client:
    """One open browser and what it has not got yet."""

    def __init__(self) -> None:
        self.waiting: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_WAITING)
        self.is_behind = False

    def give(self, message: bytes | None) -> None:
        try:
            self.waiting.put_nowait(message)
        except asyncio.QueueFull:
            self.is_behind = True


class Hub:
    """All open browsers of this process."""

    def __init__(self, picture: RunPicture) -> None:
        self._picture = picture
        self._clients: set[_Client] = set()
        self._poller: asyncio.Task[None] | None = None
        self._first_look = asyncio.Event()
        self._whole = b""
        self._is_closing = False
        # SQLite may wait for a lock, so never look in the thread that serves; and one thread alone ever looks.
        self._thread = ThreadPoolExecutor(1, "page-reader")

    @property
    def is_full(self) -> bool:
        """Whether no other browser can watch."""
        return len(self._clients) >= MAX_CLIENTS

    def close(self) -> None:
        """Let every stream end; safe in a signal handler of the loop."""
        self._is_closing = True
        for client in self._clients:
            client.is_behind = True
            client.give(None)

    async def stop(self) -> None:
        """Stop looking and close the files."""
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.gather(self._poller, return_exceptions=True)
        await asyncio.get_running_loop().run_in_executor(self._thread, self._picture.close)
        self._thread.shutdown(wait=False)

    async def stream(self, is_welcome: Callable[[], bool]) -> AsyncGenerator[bytes, None]:
        """Yield everything, then every change, as server-sent events.

        Ends when the page does, and when the one who watches is no longer welcome: logged out, or the token is new.
        """
        client = _Client()
        self._clients.add(client)
        try:
            if self._poller is None:
                self._first_look.clear()
                self._poller = asyncio.create_task(self._look_again())
            await self._first_look.wait()
            yield self._everything()
            while not self._is_closing and is_welcome():
                try:
                    message = await asyncio.wait_for(client.waiting.get(), BEAT_S)
                except TimeoutError:
                    message = BEAT
                if client.is_behind:
                    client.is_behind, client.waiting = False, asyncio.Queue(MAX_WAITING)
                    message = self._everything()
                if message is not None and not self._is_closing and is_welcome():
                    yield message
        finally:
            self._clients.discard(client)

    def _everything(self) -> bytes:
        """The first message of a stream; encoded once, however many browsers come."""
        self._whole = self._whole or _event("whole", self._picture.whole())
        return self._whole

    async def _look_again(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._clients:
                try:
                    change = await loop.run_in_executor(self._thread, self._picture.look)
                except Exception:  # a page that stops looking would show what is no longer true
                    log.exception("the page could not read the run's files; it tries again")
                    change = {}
                if change:
                    self._whole = b""
                    message = _event("change", change)
                    # Those who came during this look get it within everything.
                    for client in self._clients if self._first_look.is_set() else ():
                        client.give(message)
                self._first_look.set()
                await asyncio.sleep(EVERY_S)
        finally:
            self._poller = None


def _event(name: str, document: Document) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(document))
