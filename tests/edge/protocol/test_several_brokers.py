"""A link that knows several brokers: real Mosquittos that are stopped, and servers that refuse or keep silent."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.broker import Broker, mosquitto_binary
from fixtures.secured import free_ports

from sparsyedge.edge.errors import LinkError, SecurityError
from sparsyedge.edge.protocol import mqtt as link_module
from sparsyedge.edge.protocol.admission import Admission, Refusal
from sparsyedge.edge.protocol.channel import Connected, Received
from sparsyedge.edge.protocol.mqtt import Link
from sparsyedge.edge.protocol.route import LAP_PAUSE_S, Address, Route

WAIT_S = 300.0
LOOPBACK = "127.0.0.1"


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Broker]]:
    """Two Mosquittos that know nothing of each other."""
    monkeypatch.setattr(link_module, "RECONNECT_JITTER_S", 0.1)
    brokers = []
    for name, port in zip("ab", free_ports(2), strict=True):
        (tmp_path / name).mkdir()
        brokers.append(Broker(mosquitto_binary(), tmp_path / name, port))
    try:
        for broker in brokers:
            broker.start()
        yield brokers
    finally:
        for broker in brokers:
            broker.stop()


def make_link(brokers: list[Broker], identity: str) -> Link:
    others = [(LOOPBACK, broker.port) for broker in brokers[1:]]
    link = Link(LOOPBACK, brokers[0].port, identity=identity, others=others)
    link.subscribe("t/+")
    return link


def next_message(link: Link) -> Received:
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        event = link.receive(0.1)
        if isinstance(event, Received):
            return event
    raise AssertionError("no message came")


def until_connected(link: Link) -> None:
    until_s = time.monotonic() + WAIT_S
    while link.receive(0.1) != Connected():
        assert time.monotonic() < until_s


@pytest.mark.mosquitto
def test_links_go_to_the_next_broker_when_one_is_lost_and_say_so(
    pair: list[Broker], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first, second = pair
    links = [make_link(pair, "one"), make_link(pair, "two")]
    try:
        for link in links:
            link.open()
            until_connected(link)
        links[0].publish("t/1", b"over the first")
        assert next_message(links[1]).payload == b"over the first"
        first.stop()
        for link in links:
            until_connected(link)
        assert {link.port for link in links} == {second.port}
        links[0].publish("t/2", b"over the second")
        assert next_message(links[1]).payload == b"over the second"
        assert f"going from the broker at 127.0.0.1:{first.port} (lost) to the one at 127.0.0.1:{second.port}" in (
            caplog.text
        )
        assert f"connected to the broker at 127.0.0.1:{second.port}, after the one at 127.0.0.1:{first.port}" in (
            caplog.text
        )
        # The way back, when the second is lost and the first has returned.
        first.start()
        second.stop()
        for link in links:
            until_connected(link)
        assert {link.port for link in links} == {first.port}
    finally:
        for link in links:
            link.close()


@pytest.mark.mosquitto
def test_a_message_that_no_broker_took_before_the_loss_goes_to_the_next(pair: list[Broker]) -> None:
    sender, reader = make_link(pair, "sender"), make_link(pair[1:], "reader")
    try:
        reader.open()
        sender.open()
        pair[0].stop()
        sender.publish("t/1", b"in between", timeout_s=WAIT_S)
        assert next_message(reader).payload == b"in between"
    finally:
        sender.close()
        reader.close()


@pytest.mark.mosquitto
def test_a_broker_that_does_not_answer_at_first_is_passed_over(pair: list[Broker]) -> None:
    pair[0].stop()
    link = make_link(pair, "one")
    link.open()
    try:
        assert link.port == pair[1].port
    finally:
        link.close()


@pytest.mark.heavy
def test_brokers_of_which_none_answers_are_one_sentence_with_each_problem() -> None:
    ports = free_ports(3)
    link = Link(LOOPBACK, ports[0], identity="pi-01", others=[(LOOPBACK, port) for port in ports[1:]])
    with pytest.raises(LinkError) as caught:
        link.open(timeout_s=1.0)
    sentence = str(caught.value)
    assert sentence.startswith("cannot connect to any MQTT broker as pi-01: ")
    for port in ports:
        assert f"127.0.0.1:{port} ([Errno 111] Connection refused)" in sentence
    assert sentence.endswith("check that they run there and that `broker` in the config is right")
    assert not link.is_refused


def test_no_broker_of_a_list_may_be_elsewhere_without_tls() -> None:
    with pytest.raises(SecurityError, match=r"is at 10\.0\.0\.7, which is not this machine"):
        Link(LOOPBACK, 1883, identity="pi-01", others=[("10.0.0.7", 1883)])


# ---- the order of attempts -------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def route() -> Route:
    return Route([Address("a", 1), Address("b", 2), Address("c", 3)], None, clock=Clock())


def refuse(admission: Admission) -> None:
    admission.refusal = Refusal(135, "Not authorized")


def test_attempts_go_round_and_pause_after_each_lap(route: Route) -> None:
    route.note_up()
    waits = []
    places = []
    for _ in range(7):
        waits.append(route.leave())
        places.append(route.address.host)
    assert places == ["b", "c", "a", "b", "c", "a", "b"]
    assert waits == [0.0, 0.0, 0.0, LAP_PAUSE_S, 0.0, 0.0, LAP_PAUSE_S]


def test_a_broker_that_refuses_is_left_alone_while_others_are_tried(route: Route) -> None:
    route.note_up()
    refuse(route.here)
    assert (route.leave(), route.address.host) == (0.0, "b")
    assert (route.leave(), route.address.host) == (0.0, "c")
    assert (route.leave(), route.address.host) == (0.0, "b"), "a refused: it is not asked again at once"
    assert route.stops[0].trouble is not None
    assert route.stops[1].trouble is None


def test_refusals_by_all_are_waited_for_and_the_earliest_comes_first(route: Route) -> None:
    route.note_up()
    for _ in range(3):
        refuse(route.here)
        wait_s = route.leave()
    assert route.address.host == "a"
    assert wait_s > LAP_PAUSE_S


def test_the_broker_before_is_named_once(route: Route) -> None:
    assert route.note_up() is None
    route.leave()
    assert route.note_up() == Address("a", 1)
    assert route.note_up() is None


def test_a_single_broker_is_tried_again_and_again() -> None:
    route = Route([Address("a", 1)], None)
    route.note_up()
    assert [route.leave() for _ in range(3)] == [0.0, 0.0, 0.0]
