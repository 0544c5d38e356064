"""What the coordinator publishes, and what it repeats when the broker comes back."""

from __future__ import annotations

from typing import cast

import pytest

from sparsyedge.coordinator.fleet.publisher import Publisher
from sparsyedge.edge.errors import LinkError
from sparsyedge.edge.protocol.channel import Channel
from sparsyedge.edge.protocol.chunks import blob_of
from sparsyedge.edge.protocol.messages import Accepted, Blob, Catalogue, decode
from sparsyedge.edge.protocol.topics import Topics

TOPICS = Topics("lab")
CONTENT = bytes(range(256)) * 10


class FakeLink:
    """Keeps what a broker would retain; publishing fails after `limit` messages."""

    def __init__(self) -> None:
        self.retained: dict[str, bytes] = {}
        self.sent: list[str] = []
        self.limit = 1000

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        if len(self.sent) >= self.limit:
            raise LinkError("the broker is gone")
        self.sent.append(topic)
        if retain and payload:
            self.retained[topic] = payload
        elif retain:
            self.retained.pop(topic, None)


@pytest.fixture
def link() -> FakeLink:
    return FakeLink()


@pytest.fixture
def publisher(link: FakeLink) -> Publisher:
    return Publisher(cast("Channel", link), TOPICS)


@pytest.fixture
def blob() -> Blob:
    return blob_of(CONTENT, chunk_bytes=1024)


def chunks(link: FakeLink, blob: Blob) -> bytes:
    return b"".join(link.retained.get(TOPICS.chunk(blob.sha256, index), b"") for index in range(blob.chunks))


def test_nothing_is_sent_before_the_first_connect(publisher: Publisher, link: FakeLink, blob: Blob) -> None:
    publisher.put(blob, lambda: CONTENT)
    assert link.sent == []
    publisher.renew()
    assert chunks(link, blob) == CONTENT


def test_a_blob_is_put_and_withdrawn(publisher: Publisher, link: FakeLink, blob: Blob) -> None:
    publisher.renew()
    publisher.put(blob, lambda: CONTENT)
    assert chunks(link, blob) == CONTENT
    publisher.keep_only({blob.sha256})
    assert chunks(link, blob) == CONTENT
    publisher.keep_only(set())
    assert link.retained == {}


def test_a_lost_broker_stops_the_rest_and_a_connect_brings_it(publisher: Publisher, link: FakeLink, blob: Blob) -> None:
    publisher.renew()
    link.limit = len(link.sent) + 1
    publisher.put(blob, lambda: CONTENT)
    publisher.reply("d1", Accepted(run="r1", round=1, update=blob.sha256))
    assert len(link.sent) == link.limit
    link.limit = 1000
    link.retained.clear()
    publisher.renew()
    assert chunks(link, blob) == CONTENT


def test_what_was_withdrawn_while_the_broker_was_away_is_withdrawn_later(
    publisher: Publisher, link: FakeLink, blob: Blob
) -> None:
    publisher.renew()
    publisher.put(blob, lambda: CONTENT)
    link.limit = len(link.sent)
    publisher.keep_only(set())
    assert chunks(link, blob) == CONTENT
    link.limit = 1000
    publisher.renew()
    assert link.retained == {}


def test_before_the_first_round_an_old_task_is_cleared(publisher: Publisher, link: FakeLink) -> None:
    link.retained[TOPICS.round] = b"of a run that is gone"
    publisher.renew()
    assert link.retained == {}


def listed(link: FakeLink) -> set[str]:
    payload = link.retained.get(TOPICS.catalogue)
    return {blob.sha256 for blob in decode(payload, Catalogue).blobs} if payload else set()


def test_a_blob_is_in_the_catalogue_before_its_first_chunk_and_until_its_last_is_gone(
    publisher: Publisher, link: FakeLink, blob: Blob
) -> None:
    publisher.renew()
    link.limit = len(link.sent) + 1
    publisher.put(blob, lambda: CONTENT)
    assert (listed(link), chunks(link, blob)) == ({blob.sha256}, b"")
    link.limit = 1000
    publisher.renew()
    link.limit = len(link.sent) + 1
    publisher.keep_only(set())
    assert (listed(link), chunks(link, blob)) == ({blob.sha256}, CONTENT[1024:])
    link.limit = 1000
    publisher.renew()
    assert link.retained == {}


def test_what_an_earlier_coordinator_left_is_withdrawn_and_what_both_offer_stays(link: FakeLink, blob: Blob) -> None:
    other = blob_of(b"of a round long past", chunk_bytes=1024)
    # The same content in more chunks, as for a broker with smaller packets.
    finer = blob_of(CONTENT * 2, chunk_bytes=1024)
    coarser = blob_of(CONTENT * 2, chunk_bytes=4096)
    killed = Publisher(cast("Channel", link), TOPICS)
    killed.renew()
    for each, content in ((blob, CONTENT), (other, b"of a round long past"), (finer, CONTENT * 2)):
        killed.put(each, lambda content=content: content)  # type: ignore[misc]
    left = decode(link.retained[TOPICS.catalogue], Catalogue)
    publisher = Publisher(cast("Channel", link), TOPICS)
    publisher.put(blob, lambda: CONTENT)
    publisher.put(coarser, lambda: CONTENT * 2)
    publisher.renew()
    publisher.take_over(left)
    assert (chunks(link, blob), chunks(link, coarser)) == (CONTENT, CONTENT * 2)
    assert len(link.retained) == 1 + blob.chunks + coarser.chunks
    assert listed(link) == {blob.sha256, coarser.sha256}
