"""What the coordinator publishes: retained state that survives a broker's restart, and replies that do not need to."""

from __future__ import annotations

import logging
from collections.abc import Callable

from sparsyedge.edge.channel import Channel
from sparsyedge.edge.errors import LinkError
from sparsyedge.edge.messages import Blob, Reply, RoundTask, Topics, encode
from sparsyedge.edge.transfer import chunk_of

__all__ = ["Outbox"]

log = logging.getLogger(__name__)


class Outbox:
    """Publishes while the broker is there and remembers what must be retained.

    Starts silent: `renew`, which the owner calls on every connect, publishes all that was put so far. When the broker
    goes away in the middle, the rest is left out until the next `renew`; devices repeat what was not answered.
    """

    def __init__(self, link: Channel, topics: Topics) -> None:
        self._link = link
        self._topics = topics
        self._blobs: dict[str, tuple[Blob, Callable[[], bytes]]] = {}
        self._withdrawn: dict[str, Blob] = {}
        self._task: bytes = b""
        self._up = False

    def renew(self) -> None:
        """Publish all retained state; a task goes after the blobs that it names."""
        self._up = True
        for blob in list(self._withdrawn.values()):
            self._clear(blob)
        for blob, read in list(self._blobs.values()):
            self._publish_chunks(blob, read())
        self._publish(self._topics.round, self._task, retain=True)

    def put(self, blob: Blob, read: Callable[[], bytes]) -> None:
        """Offer a blob for download; `read` gives its content, now and after every reconnect."""
        self._blobs[blob.sha256] = (blob, read)
        self._withdrawn.pop(blob.sha256, None)
        if self._up:
            self._publish_chunks(blob, read())

    def keep_only(self, blobs: set[str]) -> None:
        """Withdraw every blob whose hash is not among these, so that the broker can forget it."""
        for sha256 in set(self._blobs) - blobs:
            blob, _ = self._blobs.pop(sha256)
            self._withdrawn[sha256] = blob
            self._clear(blob)

    def announce(self, task: RoundTask) -> None:
        """Say what the fleet does now."""
        self._task = encode(task)
        self._publish(self._topics.round, self._task, retain=True)

    def reply(self, device: str, reply: Reply) -> None:
        """Answer an offer."""
        self._publish(self._topics.reply(device), encode(reply))

    def _publish_chunks(self, blob: Blob, content: bytes) -> None:
        for index in range(blob.chunks):
            self._publish(self._topics.chunk(blob.sha256, index), chunk_of(content, blob, index), retain=True)

    def _clear(self, blob: Blob) -> None:
        for index in range(blob.chunks):
            self._publish(self._topics.chunk(blob.sha256, index), b"", retain=True)
        if self._up:
            del self._withdrawn[blob.sha256]

    def _publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        if not self._up:
            return
        try:
            self._link.publish(topic, payload, retain=retain)
        except LinkError as error:
            log.warning("%s; the rest waits for the broker to come back", error)
            self._up = False
