"""Publishes retained messages and replies; repeats the retained ones when the broker comes back."""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Callable

from sparsyedge.edge.errors import LinkError, MessageTooLarge
from sparsyedge.edge.protocol.channel import Channel
from sparsyedge.edge.protocol.chunks import CLEARED, cut
from sparsyedge.edge.protocol.messages import Blob, Catalogue, Reply, RoundTask, encode
from sparsyedge.edge.protocol.topics import Topics

__all__ = ["Publisher"]

log = logging.getLogger(__name__)

REMEMBERED_TASKS = 64
"""We receive our own announcements too, possibly after sending several newer ones."""


class Publisher:
    """Publishes while the broker is up and remembers everything retained.

    It starts silent. The owner calls `renew` on every connect, which publishes everything put so far. If the broker
    goes away in between, the rest waits for the next `renew`; devices repeat offers we did not answer.
    """

    def __init__(self, link: Channel, topics: Topics) -> None:
        self._link = link
        self._topics = topics
        self._blobs: dict[str, tuple[Blob, Callable[[], bytes]]] = {}
        self._withdrawn: dict[str, Blob] = {}
        self._task: bytes = b""
        self._announced: deque[bytes] = deque(maxlen=REMEMBERED_TASKS)
        self._cleared = 0
        """How many of our own clears of the task have not come back yet."""
        self._up = False

    def renew(self) -> None:
        """Publish all retained messages: the blobs first, then the task that names them."""
        self._up = True
        for blob in list(self._withdrawn.values()):
            self._clear(blob)
        self._publish_catalogue()
        for blob, read in list(self._blobs.values()):
            self._publish_chunks(blob, read())
        self.repeat_task()

    def put(self, blob: Blob, read: Callable[[], bytes]) -> None:
        """Offer a blob for download; `read` returns its content, now and after every reconnect."""
        self._blobs[blob.sha256] = (blob, read)
        self._withdrawn.pop(blob.sha256, None)
        if self._up:
            # The catalogue first: a successor must know of every chunk on the broker.
            self._publish_catalogue()
            self._publish_chunks(blob, read())

    def keep_only(self, blobs: set[str]) -> None:
        """Withdraw all blobs except those with these hashes, to free the broker's memory."""
        for sha256 in set(self._blobs) - blobs:
            blob, _ = self._blobs.pop(sha256)
            self._withdraw(blob)
        self._publish_catalogue()

    def take_over(self, left: Catalogue) -> None:
        """Withdraw the blobs an earlier coordinator left on the broker, except those we offer too."""
        for blob in left.blobs:
            if blob.sha256 not in self._blobs:
                self._withdraw(blob)
            else:
                # The earlier coordinator may have cut it into more chunks.
                self._clear_chunks(blob, start=self._blobs[blob.sha256][0].chunks)

    def announce(self, task: RoundTask) -> None:
        """Publish the task to the fleet."""
        self._task = encode(task)
        self.repeat_task()

    def repeat_task(self) -> None:
        """Publish the current task again."""
        if self._task:
            self._announced.append(hashlib.sha256(self._task).digest())
        else:
            self._cleared += 1
        self._publish(self._topics.round, self._task, retain=True)

    def forget(self, topic: str) -> None:
        """Clear a message that another client had retained."""
        self._publish(topic, b"", retain=True)

    def has_announced(self, task: bytes) -> bool:
        """Whether a message on the task topic is ours; each of ours comes back once."""
        if not task and self._cleared:
            self._cleared -= 1
            return True
        return hashlib.sha256(task).digest() in self._announced

    def reply(self, device: str, reply: Reply) -> None:
        """Answer an offer."""
        self._publish(self._topics.reply(device), encode(reply))

    def _publish_chunks(self, blob: Blob, content: bytes) -> None:
        for index, chunk in cut(content, blob):
            self._publish(self._topics.chunk(blob.sha256, index), chunk, retain=True)

    def _publish_catalogue(self) -> None:
        blobs = (*(blob for blob, _ in self._blobs.values()), *self._withdrawn.values())
        self._publish(self._topics.catalogue, encode(Catalogue(blobs=blobs)) if blobs else b"", retain=True)

    def _withdraw(self, blob: Blob) -> None:
        self._withdrawn[blob.sha256] = blob
        self._clear(blob)

    def _clear(self, blob: Blob) -> None:
        self._clear_chunks(blob)
        if self._up:
            del self._withdrawn[blob.sha256]

    def _clear_chunks(self, blob: Blob, *, start: int = 0) -> None:
        for index in range(start, blob.chunks):
            self._publish(self._topics.chunk(blob.sha256, index), CLEARED, retain=True)

    def _publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        if not self._up:
            return
        try:
            self._link.publish(topic, payload, retain=retain)
        except MessageTooLarge as error:
            # Only this message is too large; the others still go out.
            log.error("not sent: %s", error)
        except LinkError as error:
            log.warning("%s; the rest waits for the broker to come back", error)
            self._up = False
