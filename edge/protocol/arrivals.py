"""The queue between a link's network thread, which fills it, and the link's owner, who empties it."""

from __future__ import annotations

import logging
import queue
import threading
from typing import Final

from sparsyedge.edge.protocol.channel import Event, Received

__all__ = ["Arrivals"]

log = logging.getLogger(__name__)

INBOX_BYTES: Final = 64 * 1024 * 1024
"""We drop messages beyond this: peers must not fill our memory. Every message is retained or repeated anyway."""


class Arrivals:
    """Events in order of arrival, limited in bytes. Thread-safe."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._bytes = 0
        self._overflowed = False

    def put(self, event: Event) -> None:
        """Queue an event without blocking. Drops a message that does not fit, with one warning per overflow."""
        if not isinstance(event, Received):
            self._events.put(event)
            return
        with self._lock:
            fits = self._bytes + len(event.payload) <= INBOX_BYTES
            first_dropped = not fits and not self._overflowed
            self._overflowed = not fits
            if fits:
                self._bytes += len(event.payload)
                self._events.put(event)
        if first_dropped:
            log.warning("the inbox is full (%d MiB): messages are dropped and asked for again", INBOX_BYTES >> 20)

    def take(self, timeout_s: float) -> Event | None:
        """The next event, or None after `timeout_s`; 0 does not wait."""
        try:
            event = self._events.get(block=timeout_s > 0, timeout=timeout_s if timeout_s > 0 else None)
        except queue.Empty:
            return None
        if isinstance(event, Received):
            with self._lock:
                self._bytes -= len(event.payload)
        return event
