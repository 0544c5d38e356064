"""The light connection against a real Mosquitto, with the product's link at the other end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from fixtures.broker import Broker

from sparsyedge.benchmarks.rounds.connection import Connection, Traffic
from sparsyedge.edge.protocol.channel import Connected, Received
from sparsyedge.edge.protocol.in_flight import WINDOW_MESSAGES
from sparsyedge.edge.protocol.mqtt import Link

LIMIT_S = 300.0


class Recorder:
    """An owner that remembers what it is told."""

    def __init__(self) -> None:
        self.messages: list[tuple[bytes, bytes]] = []
        self.connects = self.sents = 0

    def connected(self) -> None:
        self.connects += 1

    def received(self, topic: bytes, payload: memoryview) -> None:
        self.messages.append((topic, bytes(payload)))

    def sent(self) -> None:
        self.sents += 1


def _connection(recorder: Recorder, port: int, *patterns: str, will: tuple[str, bytes] | None = None) -> Connection:
    return Connection(recorder, port, Traffic(), identity="light", patterns=patterns, will=will)


async def _until(true: object) -> None:
    assert callable(true)
    until_s = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < until_s, "nothing came"
        await asyncio.sleep(0.01)


@pytest.fixture
def link(broker: Broker) -> Iterator[Link]:
    """A product's link that hears everything below t/."""
    opened = Link("127.0.0.1", broker.port, identity="link")
    opened.subscribe("t/#")
    opened.open()
    while not isinstance(opened.receive(LIMIT_S), Connected):
        pass
    yield opened
    opened.close()


def _hear(link: Link, count: int) -> list[Received]:
    heard: list[Received] = []
    until_s = time.monotonic() + LIMIT_S
    while len(heard) < count and time.monotonic() < until_s:
        event = link.receive(1.0)
        if isinstance(event, Received):
            heard.append(event)
    return heard


def test_more_messages_than_the_window_holds_arrive_in_order_and_once(link: Link, broker: Broker) -> None:
    recorder, count = Recorder(), 3 * WINDOW_MESSAGES

    async def publish() -> None:
        connection = _connection(recorder, broker.port)
        await connection.open()
        for number in range(count):
            connection.publish(b"t/%d" % number, memoryview(bytes([number]) * (100_000 if number % 2 else 10)))
        await _until(lambda: recorder.sents)
        await asyncio.sleep(0.2)
        connection.close()

    asyncio.run(publish())
    heard = _hear(link, count)
    assert [message.topic for message in heard] == [f"t/{number}" for number in range(count)]
    assert all(
        message.payload == bytes([number]) * (100_000 if number % 2 else 10) for number, message in enumerate(heard)
    )


def test_a_retained_message_of_many_reads_arrives_whole(link: Link, broker: Broker) -> None:
    recorder, content = Recorder(), bytes(range(256)) * 4000
    link.publish("t/blob", content, retain=True)
    _hear(link, 1)

    async def listen() -> None:
        connection = _connection(recorder, broker.port, "t/blob")
        await connection.open()
        await _until(lambda: recorder.messages)
        connection.close()

    asyncio.run(listen())
    assert recorder.messages == [(b"t/blob", content)]


def test_the_last_will_goes_out_when_a_connection_breaks_and_not_when_it_is_closed(link: Link, broker: Broker) -> None:
    async def break_one(*, clean: bool) -> None:
        connection = _connection(Recorder(), broker.port, will=("t/status", b"gone"))
        await connection.open()
        if clean:
            connection.close()
        else:
            assert connection._transport is not None
            connection._closing = True
            connection._transport.abort()
        await asyncio.sleep(0.1)

    asyncio.run(break_one(clean=True))
    assert link.receive(0.5) is None
    asyncio.run(break_one(clean=False))
    assert [message.payload for message in _hear(link, 1)] == [b"gone"]


def test_after_a_broker_restart_it_connects_again_and_renews_its_subscriptions(broker: Broker) -> None:
    recorder, traffic = Recorder(), Traffic()

    async def live_through() -> None:
        connection = Connection(recorder, broker.port, traffic, identity="light", patterns=["own/#"])
        await connection.open()
        await asyncio.to_thread(broker.stop)
        await _until(lambda: traffic.lost_connections)
        connection.publish(b"own/late", b"kept until the broker is back")
        await asyncio.to_thread(broker.start)
        await _until(lambda: recorder.messages)
        connection.close()

    asyncio.run(live_through())
    assert recorder.connects == 2
    assert recorder.messages == [(b"own/late", b"kept until the broker is back")]
