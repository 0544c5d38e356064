"""The queue between a link's network thread, which fills it, and the link's owner, who empties it."""

from __future__ import annotations

import logging
import queue
import threading
from dataclasses import dataclass
from typing import Final

from sparsyedge.edge.protocol.channel import Event, Received

__all__ = ["Arrivals"]

log = logging.getLogger(__name__)

INBOX_BYTES: Final = 64 * 1024 * 1024
"""We drop messages beyond this: peers must not fill our memory. Every message is retained or repeated anyway."""
OVERHEAD_BYTES: Final = 512
"""What a message costs us besides its payload; without this, empty ones would have no limit."""


@dataclass(frozen=True)
class _Latest:
    """Stands in the queue for the last message on a topic."""

    topic: str


class Arrivals:
    """Events in order of arrival, limited in bytes. Thread-safe."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Event | _Latest] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._latest: dict[str, Received] = {}
        """The messages behind the `_Latest` in the queue."""
        self._bytes = 0
        self._overflowed = False

    def __len__(self) -> int:
        return self._events.qsize()

    def put(self, event: Event, *, latest: bool = False) -> None:
        """Queue an event without blocking. Drops a message that does not fit, with one warning per overflow.

        A `latest` message takes the place of an earlier one on its topic, so any number of them takes the room of one.
        """
        if not isinstance(event, Received):
            self._events.put(event)
            return
        with self._lock:
            before = self._latest.get(event.topic) if latest else None
            added = _cost(event) - (_cost(before) if before else 0)
            fits = self._bytes + added <= INBOX_BYTES
            first_dropped = not fits and not self._overflowed
            self._overflowed = not fits
            if fits:
                self._bytes += added
                if latest:
                    self._latest[event.topic] = event
                if before is None:
                    self._events.put(_Latest(event.topic) if latest else event)
        if first_dropped:
            log.warning("the inbox is full (%d MiB): messages are dropped and asked for again", INBOX_BYTES >> 20)

    def take(self, timeout_s: float) -> Event | None:
        """The next event, or None after `timeout_s`; 0 does not wait."""
        try:
            event = self._events.get(block=timeout_s > 0, timeout=timeout_s if timeout_s > 0 else None)
        except queue.Empty:
            return None
        if isinstance(event, Received | _Latest):
            with self._lock:
                if isinstance(event, _Latest):
                    event = self._latest.pop(event.topic)
                self._bytes -= _cost(event)
        return event


def _cost(message: Received) -> int:
    return len(message.payload) + OVERHEAD_BYTES
