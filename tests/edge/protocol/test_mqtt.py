"""The link against real brokers, Mosquitto (MQTT 5) and amqtt (MQTT 3.1.1), and against one that misbehaves."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import pytest
from fixtures.broker import Broker

from sparsyedge.benchmarks.demo.broker import LocalBroker
from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.edge.errors import LinkError
from sparsyedge.edge.protocol import arrivals, in_flight, subscriptions
from sparsyedge.edge.protocol import mqtt as link_module
from sparsyedge.edge.protocol.channel import Connected, Event, Received
from sparsyedge.edge.protocol.messages import CHUNK_BYTES
from sparsyedge.edge.protocol.mqtt import Link

WAIT_S = 300.0
# Far above every limit that the tests set: a guard against hanging, not a measurement.
HANG_S = 60.0
MQTT_3_1_1 = 4
LOOPBACK = "127.0.0.1"


class Startable(Protocol):
    port: int

    def start(self) -> None: ...

    def stop(self) -> None: ...


class MuteBroker:
    """Accepts connections, sends one greeting, then only reads."""

    def __init__(self, port: int, greeting: bytes, *, hang_up: bool = False) -> None:
        self._greeting = greeting
        self._hang_up = hang_up
        self._server = socket.create_server((LOOPBACK, port))
        self.connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self.connections.append(connection)
            connection.recv(4096)
            connection.sendall(self._greeting)
            if self._hang_up:
                connection.close()

    def stop(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(WAIT_S)
        for connection in self.connections:
            connection.close()


CONNACK_V5 = bytes([0x20, 3, 0, 0, 0])
CONNACK_V5_NOT_AUTHORIZED = bytes([0x20, 3, 0, 0x87, 0])

both_brokers = pytest.mark.parametrize(
    "server",
    [pytest.param("mosquitto", marks=pytest.mark.mosquitto), pytest.param("amqtt", marks=pytest.mark.heavy)],
    indirect=True,
)


def wait_until(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until_s, "it did not happen in time"
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def no_thread_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(link_module, "RECONNECT_JITTER_S", 0.1)
    monkeypatch.setattr(link_module, "CLOSE_TIMEOUT_S", 0.5)
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Startable:
    broker: Startable = request.getfixturevalue("broker" if request.param == "mosquitto" else "amqtt")
    return broker


@pytest.fixture
def open_link() -> Iterator[Callable[..., Link]]:
    links: list[Link] = []

    def make(port: int, identity: str, *patterns: str, will: tuple[str, bytes] | None = None) -> Link:
        link = Link(LOOPBACK, port, identity=identity, will=will)
        links.append(link)
        for pattern in (*patterns, f"to/{identity}"):
            link.subscribe(pattern)
        link.open()
        assert link.receive(WAIT_S) == Connected()
        return link

    yield make
    for link in links:
        link.close()


def take(link: Link, count: int) -> list[Received]:
    """The next messages, other events left out."""
    messages: list[Received] = []
    until_s = time.monotonic() + WAIT_S
    while len(messages) < count and time.monotonic() < until_s:
        event = link.receive(0.2)
        if isinstance(event, Received):
            messages.append(event)
    return messages


def wait_for_connected(link: Link) -> None:
    wait_until(lambda: link.receive(0.2) == Connected())


@both_brokers
def test_published_messages_arrive_in_order(server: Startable, open_link: Callable[..., Link]) -> None:
    receiver = open_link(server.port, "receiver", "t/+")
    sender = open_link(server.port, "sender")
    payloads = [bytes([index]) * 96 * 1024 for index in range(40)]
    for index, payload in enumerate(payloads):
        sender.publish(f"t/{index}", payload)
    messages = take(receiver, len(payloads))
    assert [(message.topic, message.payload) for message in messages] == [
        (f"t/{index}", payload) for index, payload in enumerate(payloads)
    ]
    assert not any(message.retained for message in messages)


@both_brokers
def test_retained_message_awaits_a_late_subscriber_and_comes_again_when_asked_again(
    server: Startable, open_link: Callable[..., Link]
) -> None:
    sender = open_link(server.port, "sender")
    sender.publish("state/x", b"now", retain=True)
    # Otherwise a slow broker would send it to the subscriber as a new message.
    wait_until(lambda: not sender._window)
    receiver = open_link(server.port, "receiver")
    for _ in range(2):
        receiver.subscribe("state/+")
        assert take(receiver, 1) == [Received("state/x", b"now", retained=True)]


@both_brokers
def test_what_was_not_asked_for_is_dropped(server: Startable, open_link: Callable[..., Link]) -> None:
    other = open_link(server.port, "other", "secret/+")
    other.publish("secret/x", b"not yours", retain=True)
    assert take(other, 1)
    receiver = open_link(server.port, "receiver", "mine/x")
    other.publish("mine/x", b"yours")
    assert take(receiver, 1) == [Received("mine/x", b"yours", retained=False)]
    receiver.unsubscribe("mine/x")
    other.publish("mine/x", b"too late")
    assert receiver.receive(0.3) is None


@both_brokers
def test_link_comes_back_after_a_broker_restart_and_renews_its_subscriptions(
    server: Startable, open_link: Callable[..., Link]
) -> None:
    receiver = open_link(server.port, "receiver", "t/+")
    sender = open_link(server.port, "sender")
    server.stop()
    server.start()
    wait_for_connected(receiver)
    wait_for_connected(sender)
    sender.publish("t/1", b"back", retain=True)
    assert [message.payload for message in take(receiver, 1)] == [b"back"]


@both_brokers
def test_publish_waits_for_the_broker_to_come_back(server: Startable, open_link: Callable[..., Link]) -> None:
    link = open_link(server.port, "device", "t/x")
    server.stop()
    restart = threading.Timer(0.5, server.start)
    restart.start()
    wait_until(lambda: not link._up)
    link.publish("t/x", b"patience")
    restart.join()
    assert [message.payload for message in take(link, 1)] == [b"patience"]


@both_brokers
def test_last_will_is_sent_for_a_link_that_breaks_and_not_for_one_that_closes(
    server: Startable, open_link: Callable[..., Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.uniform", lambda low, high: HANG_S)
    watcher = open_link(server.port, "watcher", "status/+")
    orderly = open_link(server.port, "orderly", will=("status/orderly", b"offline"))
    broken = open_link(server.port, "broken", will=("status/broken", b"offline"))
    orderly.close()
    assert broken._client is not None
    broken._client.cut()
    assert [message.topic for message in take(watcher, 1)] == ["status/broken"]
    assert watcher.receive(0.3) is None
    late = open_link(server.port, "late")
    late.subscribe("status/+")
    assert take(late, 1) == [Received("status/broken", b"offline", retained=True)]


@both_brokers
def test_messages_handed_over_before_close_are_delivered(server: Startable, open_link: Callable[..., Link]) -> None:
    receiver = open_link(server.port, "receiver", "t")
    sender = open_link(server.port, "sender")
    for _ in range(10):
        sender.publish("t", bytes(50_000))
    sender.close()
    sender.close()
    assert len(take(receiver, 10)) == 10


def test_broker_without_mqtt_5_is_opened_with_3_1_1(amqtt: LocalBroker, open_link: Callable[..., Link]) -> None:
    link = open_link(amqtt.port, "device", will=("status/device", b"offline"))
    assert link._client is not None
    assert link._client._client.protocol == MQTT_3_1_1


def test_chunks_are_small_where_the_broker_does_not_say_what_it_takes(
    amqtt: LocalBroker, open_link: Callable[..., Link]
) -> None:
    assert open_link(amqtt.port, "pi-01").chunk_bytes == CHUNK_BYTES


def test_a_silent_device_is_given_up_within_45_s_by_what_the_broker_is_told(
    amqtt: LocalBroker, open_link: Callable[..., Link]
) -> None:
    client = open_link(amqtt.port, "device", will=("status/device", b"offline"))._client
    assert client is not None
    looks_every_s = 6  # Mosquitto
    assert 1.5 * client._client.keepalive + looks_every_s <= 45


@pytest.mark.mosquitto
def test_chunks_are_larger_where_the_broker_allows(broker: Broker, open_link: Callable[..., Link]) -> None:
    assert open_link(broker.port, "pi-01").chunk_bytes == 256 * 1024


@pytest.mark.mosquitto
def test_chunks_fit_the_packets_that_the_broker_takes(capped_broker: Broker, open_link: Callable[..., Link]) -> None:
    receiver = open_link(capped_broker.port, "receiver", "t")
    assert CHUNK_BYTES <= receiver.chunk_bytes < 131072
    receiver.publish("t", bytes(receiver.chunk_bytes))
    assert [len(message.payload) for message in take(receiver, 1)] == [receiver.chunk_bytes]
    with pytest.raises(LinkError, match=r"is too large for the MQTT broker .* takes packets of 131072"):
        receiver.publish("t", bytes(131072))


@pytest.mark.mosquitto
def test_what_is_sent_to_a_device_during_a_short_absence_awaits_it(
    broker: Broker, open_link: Callable[..., Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = open_link(broker.port, "sender")
    device = open_link(broker.port, "device", will=("status", b"offline"))
    monkeypatch.setattr(link_module, "RECONNECT_JITTER_S", 3.0)
    assert device._client is not None
    device._client.cut()
    wait_until(lambda: not device._up)
    sender.publish("to/device", b"a grant")
    assert [message.payload for message in take(device, 1)] == [b"a grant"]


def test_unreachable_broker_is_a_sentence_within_the_time_limit(free_port: int) -> None:
    started_s = time.monotonic()
    with pytest.raises(
        LinkError, match=rf"broker at 127\.0\.0\.1:{free_port} as pi-01: .*refused.*check that the broker"
    ):
        Link(LOOPBACK, free_port, identity="pi-01").open(timeout_s=1.0)
    assert time.monotonic() - started_s < HANG_S


def test_unknown_host_is_a_sentence(authority: Authority) -> None:
    with pytest.raises(LinkError, match=r"broker at host\.invalid:1883"):
        Link("host.invalid", 1883, identity="pi-01", tls=authority.coordinator).open(timeout_s=0.5)


@pytest.mark.parametrize("hang_up", [False, True])
def test_server_that_does_not_speak_mqtt_is_a_sentence_within_the_time_limit(free_port: int, hang_up: bool) -> None:
    server = MuteBroker(free_port, b"", hang_up=hang_up)
    started_s = time.monotonic()
    try:
        with pytest.raises(LinkError, match="closed the connection or did not answer"):
            Link(LOOPBACK, free_port, identity="pi-01").open(timeout_s=1.0)
    finally:
        server.stop()
    assert time.monotonic() - started_s < HANG_S


def test_refusal_by_the_broker_is_told_with_its_reason(free_port: int) -> None:
    server = MuteBroker(free_port, CONNACK_V5_NOT_AUTHORIZED)
    try:
        with pytest.raises(LinkError, match="Not authorized"):
            Link(LOOPBACK, free_port, identity="pi-01").open(timeout_s=5.0)
    finally:
        server.stop()


def test_publish_stops_when_too_much_is_unacknowledged(free_port: int) -> None:
    server = MuteBroker(free_port, CONNACK_V5)
    link = Link(LOOPBACK, free_port, identity="pi-01")
    try:
        link.open()
        for index in range(in_flight.WINDOW_MESSAGES):
            link.publish(f"t/{index}", b"x", timeout_s=1.0)
        with pytest.raises(LinkError, match=r"took no message for 0\.3 s: 16 are unacknowledged"):
            link.publish("t/one-too-many", b"x", timeout_s=0.3)
    finally:
        started_s = time.monotonic()
        link.close()
        server.stop()
    assert time.monotonic() - started_s < HANG_S


def test_publish_stops_when_too_many_bytes_are_unacknowledged(free_port: int) -> None:
    server = MuteBroker(free_port, CONNACK_V5)
    link = Link(LOOPBACK, free_port, identity="pi-01")
    try:
        link.open()
        link.publish("t/large", bytes(in_flight.WINDOW_BYTES), timeout_s=1.0)
        with pytest.raises(LinkError, match="1 are unacknowledged"):
            link.publish("t/small", b"x", timeout_s=0.3)
    finally:
        link.close()
        server.stop()


def test_publish_on_a_link_that_is_not_open_is_a_sentence() -> None:
    with pytest.raises(LinkError, match="is closed; open it"):
        Link(LOOPBACK, 1883, identity="pi-01").publish("t", b"x")


def test_broker_that_forgets_a_connection_is_left_and_tried_again(
    free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "SILENCE_S", 0.5)
    server = MuteBroker(free_port, CONNACK_V5)
    link = Link(LOOPBACK, free_port, identity="pi-01")
    link.subscribe("t/+")
    try:
        link.open()
        before = len(server.connections)
        assert link.receive(1.0) is None, "the subscription was not confirmed"
        wait_until(lambda: link.receive(0.1) is None and len(server.connections) > before)
    finally:
        link.close()
        server.stop()


@both_brokers
def test_answered_subscriptions_are_not_taken_for_silence(
    server: Startable, open_link: Callable[..., Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "SILENCE_S", 0.5)
    link = open_link(server.port, "device")
    for index in range(300):
        link.subscribe(f"t/{index % 20}")
    until_s = time.monotonic() + 1.0
    while time.monotonic() < until_s:
        assert link.receive(0.1) is None


@pytest.mark.mosquitto
def test_full_inbox_drops_messages_and_takes_new_ones_once_it_is_read(
    mosquitto: int, open_link: Callable[..., Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "INBOX_BYTES", 3 * (300 + arrivals.OVERHEAD_BYTES) + 100)
    put, arrived = arrivals.Arrivals.put, list[str]()

    def noted(self: arrivals.Arrivals, event: Event, *, latest: bool = False) -> None:
        put(self, event, latest=latest)
        if isinstance(event, Received):
            arrived.append(event.topic)

    monkeypatch.setattr(arrivals.Arrivals, "put", noted)
    receiver = open_link(mosquitto, "receiver", "t")
    sender = open_link(mosquitto, "sender")
    for _ in range(10):
        sender.publish("t", bytes(300))
    wait_until(lambda: len(arrived) == 10)
    assert len(take_now(receiver)) == 3
    sender.publish("t", bytes(300))
    assert len(take(receiver, 1)) == 1


def take_now(link: Link) -> list[Received]:
    messages: list[Received] = []
    while isinstance(event := link.receive(0), Received):
        messages.append(event)
    return messages


@both_brokers
def test_what_is_told_reaches_others_is_kept_and_can_be_taken_back(
    server: Startable, open_link: Callable[..., Link]
) -> None:
    receiver = open_link(server.port, "receiver", "t")
    sender = open_link(server.port, "sender")
    tell(sender, "t", b"one")
    assert [message.payload for message in take(receiver, 1)] == [b"one"]
    late = open_link(server.port, "late")
    late.subscribe("t")
    assert [(message.payload, message.retained) for message in take(late, 1)] == [(b"one", True)]
    tell(sender, "t", b"")
    assert [message.payload for message in take(receiver, 1)] == [b""]
    later = open_link(server.port, "later", "end")
    later.subscribe("t")
    sender.publish("end", b"")
    assert [message.topic for message in take(later, 1)] == ["end"], "nothing is kept any more"


def tell(link: Link, topic: str, payload: bytes) -> None:
    """Tell it as soon as the last message is on its way."""
    wait_until(lambda: link.tell(topic, payload))


@pytest.mark.mosquitto
def test_telling_waits_neither_for_a_broker_that_does_not_read_nor_for_one_that_is_gone(
    broker: Broker, open_link: Callable[..., Link]
) -> None:
    link = open_link(broker.port, "sender")
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        # Until the buffers of the connection are full, and then one more.
        while link.tell("t", bytes(100_000)) or link._window.may_tell:
            pass
        assert not link.tell("t", b"x")
        assert len(link._window) == 1, "nothing piles up"
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    tell(link, "t", b"again")
    broker.stop()
    wait_until(lambda: not link.tell("t", b"x") and link.health().down_s > 0)
    broker.start()
    tell(link, "t", b"back")


@pytest.mark.mosquitto
def test_messages_with_and_without_acknowledgement_share_a_link(mosquitto: int, open_link: Callable[..., Link]) -> None:
    receiver = open_link(mosquitto, "receiver", "sure", "told")
    sender = open_link(mosquitto, "sender")
    told = 0
    for number in range(300):
        sender.publish("sure", b"%d" % number)
        told += sender.tell("told", b"%d" % number)
    messages = take(receiver, 300 + told)
    assert [message.payload for message in messages if message.topic == "sure"] == [b"%d" % n for n in range(300)]
    assert 0 < told <= 300
    assert receiver.health().backlog == 0
