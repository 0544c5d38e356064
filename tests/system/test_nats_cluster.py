"""What a real NATS cluster lets whom do, configured by `sparsyedge coordinator init --broker nats`."""

from __future__ import annotations

import re
import secrets
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fixtures.nats import NODES, Nodes, enter, join, make_cluster, running
from fixtures.probe import LIMIT_S, Probe
from fixtures.secured import make_member

from sparsyedge.coordinator.authority.enrolment_service import serving
from sparsyedge.coordinator.authority.revocation import revoke
from sparsyedge.edge.commands.enrol_command import enrol
from sparsyedge.edge.errors import LinkError, SecurityError
from sparsyedge.edge.protocol.channel import Channel, Received
from sparsyedge.edge.protocol.mqtt import Link
from sparsyedge.edge.protocol.tls import Tls, client_context
from sparsyedge.edge.protocol.topics import Topics
from sparsyedge.edge.security.enrolment_messages import DeviceFile, entry_reply, token_sha256
from sparsyedge.edge.security.identity import Identity

# A cluster elects leaders, which takes it seconds, or minutes beside other work: behind `make test-cluster`.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

DEVICES = ("pi-01", "pi-02", "pi-03")
TOPICS = Topics("lab")
SHA = "ab" * 32
GREEDY = (
    "#",
    "+/#",
    "se/v1/lab/#",
    "se/v1/lab/+",
    "se/v1/lab/*",
    "se/v1/lab/>",
    "se/v1/lab/blob/#",
    "se/v1/lab/dev/+/reply",
    "se/v1/lab/dev/+/status",
    "se/v1/lab/enrol/reply/+",
    "$SYS/#",
    "$JS/#",
    "$MQTT/#",
    "$MQTT/+/+",
    "+/sub/#",
)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    yield from running(Nodes(make_cluster(tmp_path_factory.mktemp("cluster") / "fleet")))


@pytest.fixture
def members(nodes: Nodes, tmp_path: Path) -> Iterator[dict[str, Probe]]:
    """A device at each node."""
    opened: dict[str, Probe] = {}
    try:
        for number, device in enumerate(DEVICES, start=1):
            opened[device] = join(nodes, device, tmp_path / device, number=number)
        yield opened
    finally:
        for member in opened.values():
            member.close()


@pytest.fixture
def coordinator(nodes: Nodes) -> Iterator[Probe]:
    with closing(enter(nodes, 1, nodes.authority.coordinator)) as opened:
        assert opened.subscribe("se/v1/lab/#")
        yield opened
        clear(opened)


def clear(coordinator: Probe) -> None:
    """Leave nothing retained for the next test."""
    for topic in {topic for topic, payload in coordinator.received if payload}:
        coordinator.publish(topic, b"", retain=True)


def own_topics(device: str) -> list[str]:
    says = [TOPICS.status(device), TOPICS.progress(device), TOPICS.report(device)]
    return [*says, TOPICS.renewal_request(device), TOPICS.offer(device), TOPICS.upload(device, SHA, 0)]


def for_device(device: str) -> list[str]:
    return [TOPICS.reply(device), TOPICS.renewal_reply(device), TOPICS.order(device)]


def all_topics() -> list[str]:
    common = [
        TOPICS.round,
        TOPICS.chunk(SHA, 0),
        TOPICS.enrol_request("pi-07"),
        TOPICS.enrol_reply("ab" * 16),
        TOPICS.lease,
        TOPICS.catalogue,
        TOPICS.release,
        TOPICS.authority,
    ]
    of_devices = [topic for device in DEVICES for topic in (*own_topics(device), *for_device(device))]
    return [*common, *of_devices]


def foreign_topics() -> list[str]:
    return ["se/v1/other/round", "$SYS/broker/clients", "$MQTT/sess/x", "$MQTT/msgs/se/v1/lab/round", "$JS/API/INFO"]


def until_seen(coordinator: Probe, mark: bytes) -> None:
    """Everything sent before has arrived: messages of one sender keep their order."""
    coordinator.until(lambda: any(payload == mark for _, payload in coordinator.received))


@pytest.mark.parametrize("retain", [False, True])
def test_no_device_writes_anything_but_its_own_topics(
    members: dict[str, Probe], coordinator: Probe, retain: bool
) -> None:
    expected = []
    for device, member in members.items():
        for topic in (*all_topics(), *foreign_topics()):
            member.publish(topic, device.encode(), retain=retain)
        member.publish(TOPICS.offer(device), b"end of " + device.encode())
        expected += [(topic, device.encode()) for topic in own_topics(device)]
        expected += [(TOPICS.offer(device), b"end of " + device.encode())]
    for device in DEVICES:
        until_seen(coordinator, b"end of " + device.encode())
    assert set(coordinator.received) == set(expected)


def test_what_a_device_may_not_write_is_not_retained_either(
    nodes: Nodes, members: dict[str, Probe], coordinator: Probe
) -> None:
    for device, member in members.items():
        for topic in (*all_topics(), *foreign_topics()):
            member.publish(topic, device.encode(), retain=True)
        member.publish(TOPICS.offer(device), b"end of " + device.encode())
        until_seen(coordinator, b"end of " + device.encode())
    with closing(enter(nodes, 2, nodes.authority.coordinator)) as late:
        late.subscribe("se/v1/lab/#")
        own = {(topic, device.encode()) for device in DEVICES for topic in own_topics(device)}
        late.until(lambda: own <= set(late.received))
        late.publish(TOPICS.catalogue, b"end")
        until_seen(late, b"end")
        assert {(topic, payload) for topic, payload in late.received if payload} == {
            *own,
            (TOPICS.catalogue, b"end"),
        }


def test_no_device_reads_anything_but_its_own_answers_and_what_is_for_all(
    members: dict[str, Probe], coordinator: Probe
) -> None:
    for topic in all_topics():
        coordinator.publish(topic, b"kept", retain=True)
    for device, member in members.items():
        granted = {pattern for pattern in (*GREEDY, *all_topics(), *foreign_topics()) if member.subscribe(pattern)}
        assert granted == {TOPICS.round, TOPICS.chunk(SHA, 0), TOPICS.release, TOPICS.authority, *for_device(device)}
        assert member.subscribe(TOPICS.chunk(SHA, "+"))
        # NATS says that it grants this one, and gives nothing.
        member.subscribe("$MQTT/sub/#")
    for topic in all_topics():
        coordinator.publish(topic, b"live")
    coordinator.publish(TOPICS.round, b"end")
    for device, member in members.items():
        member.until(lambda member=member: (TOPICS.round, b"end") in member.received)  # type: ignore[misc]
        readable = {TOPICS.round, TOPICS.chunk(SHA, 0), TOPICS.release, TOPICS.authority, *for_device(device)}
        assert {topic for topic, _ in member.received} == readable


def test_a_last_will_reaches_only_the_device_s_own_topics(nodes: Nodes, coordinator: Probe, tmp_path: Path) -> None:
    tls = make_member(nodes.authority, "pi-01", tmp_path / "pi-01").tls
    for topic in (TOPICS.status("pi-02"), TOPICS.round, TOPICS.status("pi-01")):
        with closing(enter(nodes, 2, tls, will=(topic, b"gone"))) as member:
            member.vanish()
    coordinator.until(lambda: (TOPICS.status("pi-01"), b"gone") in coordinator.received)
    assert {topic for topic, payload in coordinator.received if payload == b"gone"} == {TOPICS.status("pi-01")}


def entry_tls(device: DeviceFile, folder: Path) -> Tls:
    folder.mkdir()
    (folder / "ca.pem").write_text(device.ca)
    return Identity(folder).keep_entry(device.entry_certificate, device.entry_key)


def test_a_newcomer_may_ask_and_read_its_own_answer_and_nothing_else(
    nodes: Nodes, coordinator: Probe, tmp_path: Path
) -> None:
    files = [nodes.authority.invite(name) for name in ("pi-07", "pi-08")]
    replies = [entry_reply(token_sha256(str(file.token))) for file in files]
    entries = [entry_tls(file, tmp_path / file.device) for file in files]
    with closing(enter(nodes, 2, entries[0])) as one, closing(enter(nodes, 3, entries[1])) as other:
        for newcomer, reply in ((one, replies[0]), (other, replies[1])):
            mine = TOPICS.enrol_reply(reply)
            others = [TOPICS.enrol_reply(name) for name in replies]
            assert {pattern for pattern in (*GREEDY, *all_topics(), *others) if newcomer.subscribe(pattern)} == {mine}
        for topic in (*all_topics(), *foreign_topics(), TOPICS.enrol_request("pi-08")):
            one.publish(topic, b"from a newcomer")
        one.publish(TOPICS.enrol_request("pi-07"), b"end")
        until_seen(coordinator, b"end")
        for reply in replies:
            coordinator.publish(TOPICS.enrol_reply(reply), reply.encode())
        for newcomer, reply in ((one, replies[0]), (other, replies[1])):
            newcomer.until(lambda newcomer=newcomer: bool(newcomer.received))  # type: ignore[misc]
            assert newcomer.received == [(TOPICS.enrol_reply(reply), reply.encode())]
    passed_on = {topic for topic, payload in coordinator.received if payload == b"from a newcomer"}
    assert passed_on == {TOPICS.enrol_request("pi-07")}


def is_let_in(port: int, tls: Tls) -> bool:
    """Whether a node welcomes an MQTT 3.1.1 CONNECT over such a connection."""
    name = secrets.token_hex(8).encode()
    packet = b"\x00\x04MQTT\x04\x02\x00\x3c\x00" + bytes([len(name)]) + name
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as plain,
            client_context(tls).wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        ):
            connection.sendall(b"\x10" + bytes([len(packet)]) + packet)
            return connection.recv(4) == b"\x20\x02\x00\x00"
    except TimeoutError:
        raise
    except OSError:
        return False


def test_strangers_are_not_let_in(nodes: Nodes, tmp_path: Path) -> None:
    trust = Tls(nodes.authority.folder / "ca.pem")
    foreign = make_member(make_cluster(tmp_path / "other"), "pi-01", tmp_path / "foreign").tls
    forged = Tls(trust.ca, foreign.certificate, foreign.key)
    for node in nodes.cluster.nodes:
        assert is_let_in(node.port, nodes.authority.coordinator)
        assert not is_let_in(node.port, trust)
        assert not is_let_in(node.port, forged)


def test_a_member_is_neither_a_node_nor_a_client_of_nats_itself(nodes: Nodes, tmp_path: Path) -> None:
    tls = make_member(nodes.authority, "pi-01", tmp_path / "pi-01").tls
    enter(nodes, 1, tls).close()
    log = (nodes.authority.folder / "nodes" / "1" / "nats.log").read_text()
    found = re.search(r"Listening for client connections on 127\.0\.0\.1:(\d+)", log)
    assert found is not None
    for certificate in (tls, nodes.authority.coordinator):
        assert not speaks_nats(int(found[1]), certificate, greets=True)
        assert not speaks_nats(nodes.cluster.nodes[0].cluster_port, certificate, greets=False)


def speaks_nats(port: int, tls: Tls, *, greets: bool) -> bool:
    """Whether NATS answers the ping of somebody with this certificate, by its own protocol."""
    context = client_context(tls)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    heard = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as plain:
            if greets:
                plain.recv(4096)
            with context.wrap_socket(plain) as connection:
                connection.sendall(b'CONNECT {"verbose":false,"pedantic":false,"tls_required":true}\r\nPING\r\n')
                while more := connection.recv(4096):
                    heard += more
    except OSError:
        pass
    return b"PONG" in heard


def test_a_revoked_device_loses_its_connection_and_gets_no_other(
    nodes: Nodes, coordinator: Probe, tmp_path: Path
) -> None:
    tls = make_member(nodes.authority, "pi-01", tmp_path / "pi-01").tls
    with closing(enter(nodes, 2, tls)) as live, closing(join(nodes, "pi-02", tmp_path / "pi-02")) as bystander:
        live.publish(TOPICS.status("pi-01"), b"online", retain=True)
        until_seen(coordinator, b"online")
        outcome = revoke(nodes.authority, "pi-01")
        assert (outcome.certificates, outcome.reloaded, outcome.disconnected) == (1, True, True)
        assert live.ended.wait(LIMIT_S)
        for node in nodes.cluster.nodes:
            until_s = time.monotonic() + LIMIT_S
            while is_let_in(node.port, tls):
                assert time.monotonic() < until_s
        bystander.publish(TOPICS.offer("pi-02"), b"here")
        until_seen(coordinator, b"here")
        assert not bystander.ended.is_set()
    # It hears why it is not let in, and what it keeps is not delivered any more.
    first, *others = ((node.host, node.port) for node in nodes.cluster.nodes)
    with pytest.raises(LinkError, match="ask the operator whether this device is still a member") as caught:
        Link(*first, identity="pi-01", tls=tls, others=others).open()
    assert all(f"127.0.0.1:{node.port}" in str(caught.value) for node in nodes.cluster.nodes)
    coordinator.until(lambda: (TOPICS.status("pi-01"), b"") in coordinator.received)


def test_a_device_that_enrols_again_is_let_in_with_its_new_certificate_alone(nodes: Nodes, tmp_path: Path) -> None:
    old = make_member(nodes.authority, "pi-01", tmp_path / "old").tls
    with closing(enter(nodes, 3, old)) as before:
        new = make_member(nodes.authority, "pi-01", tmp_path / "new").tls
        assert before.ended.wait(LIMIT_S)
    enter(nodes, 3, new).close()
    assert not is_let_in(nodes.cluster.nodes[2].port, old)


def test_a_device_enrols_over_any_node_and_its_file_is_used_up(nodes: Nodes, tmp_path: Path) -> None:
    with serving(nodes.authority):
        file = nodes.authority.invite("pi-11")
        assert len(file.others) == NODES - 1
        identity = enrol(file, tmp_path / "pi-11", timeout_s=LIMIT_S)
        assert identity.is_of("pi-11")
        assert not list(identity.folder.glob("entry*"))
        enter(nodes, 1, identity.tls).close()
        with pytest.raises(SecurityError, match="used already"):
            enrol(file, tmp_path / "thief", timeout_s=LIMIT_S)
        nodes.authority.invite("pi-11")
        with pytest.raises(SecurityError, match="does not know the token of pi-11"):
            enrol(file, tmp_path / "late", timeout_s=LIMIT_S)


def test_coordinator_and_device_go_on_over_the_other_nodes_when_theirs_is_lost(nodes: Nodes, tmp_path: Path) -> None:
    tls = make_member(nodes.authority, "pi-21", tmp_path / "pi-21").tls
    enter(nodes, 1, tls).close()
    places = [(node.host, node.port) for node in nodes.cluster.nodes]
    device = Link(*places[0], identity=secrets.token_hex(8), tls=tls, others=places[1:])
    device.subscribe(TOPICS.reply("pi-21"))
    # A link to a list asks again for what a node without a leader refuses.
    late = Link(*places[2], identity=secrets.token_hex(8), tls=tls, others=places[1:2])
    late.subscribe(TOPICS.round)
    coordinator = nodes.authority.link("lead")
    coordinator.subscribe(TOPICS.offer("+"))
    try:
        coordinator.open()
        device.open()
        coordinator.publish(TOPICS.round, b"kept", retain=True)
        nodes.kill(1)
        device.publish(TOPICS.offer("pi-21"), b"offer", timeout_s=LIMIT_S)
        # Either side may have been away when the other spoke: all of ours is said again until it is answered.
        asked_until_s = time.monotonic() + LIMIT_S
        while (heard := received(device)) is None:
            assert time.monotonic() < asked_until_s
            device.publish(TOPICS.offer("pi-21"), b"offer", timeout_s=LIMIT_S)
            if received(coordinator) is not None:
                coordinator.publish(TOPICS.reply("pi-21"), b"grant", timeout_s=LIMIT_S)
        assert heard == b"grant"
        assert device.port != places[0][1]
        late.open(LIMIT_S)
        while (kept := received(late)) is None:
            assert time.monotonic() < asked_until_s + LIMIT_S
        assert kept == b"kept"
        coordinator.publish(TOPICS.round, b"", retain=True, timeout_s=LIMIT_S)
    finally:
        for link in (device, late, coordinator):
            link.close()
        nodes.start(1)


def received(channel: Channel) -> bytes | None:
    event = channel.receive(0.5)
    return event.payload if isinstance(event, Received) else None


def test_names_with_dots_are_refused(nodes: Nodes) -> None:
    with pytest.raises(SecurityError, match=r"'pi\.01' cannot be a device of a fleet over NATS"):
        nodes.authority.invite("pi.01")
