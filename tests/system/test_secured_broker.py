"""What a real Mosquitto lets whom do, with the configuration that `sparsyedge coordinator init` made."""

from __future__ import annotations

import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.probe import LIMIT_S, Probe, probe
from fixtures.secured import login_of, make_authority, make_member

from sparsyedge.coordinator.authority import mosquitto
from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.authority.revocation import revoke
from sparsyedge.edge.errors import LinkError
from sparsyedge.edge.protocol.mqtt import Link
from sparsyedge.edge.protocol.tls import Tls, client_context
from sparsyedge.edge.protocol.topics import Topics
from sparsyedge.edge.storage import write_atomically

pytestmark = pytest.mark.mosquitto

DEVICES = ("pi-01", "pi-02", "pi-03")
TOPICS = Topics("lab")
SHA = "ab" * 32
NOT_AUTHORIZED = 135
CONNECT = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01a"
CONNACK = b"\x20\x02\x00\x00"


def connect_as(name: str, password: str) -> bytes:
    """A CONNECT with a name and a password."""
    fields = b"".join(len(text).to_bytes(2, "big") + text.encode() for text in ("a", name, password))
    rest = b"\x00\x04MQTT\x04\xc2\x00\x3c" + fields
    assert len(rest) < 128
    return b"\x10" + bytes([len(rest)]) + rest


@pytest.fixture
def members(secured: Authority, tmp_path: Path) -> Iterator[dict[str, Probe]]:
    """Three devices that ask for everything, connected with ids of other devices."""
    opened: dict[str, Probe] = {}
    try:
        for index, device in enumerate(DEVICES):
            identity = make_member(secured, device, tmp_path / device)
            claimed = DEVICES[(index + 1) % len(DEVICES)]
            opened[device] = Probe(secured.settings.port, identity.tls, client_id=claimed)
            for pattern in ("#", "se/v1/lab/#", "se/v1/lab/dev/+/reply"):
                opened[device].subscribe(pattern)
        yield opened
    finally:
        for member in opened.values():
            member.close()


@pytest.fixture
def coordinator(secured: Authority) -> Iterator[Probe]:
    with probe(secured.settings.coordinator_port, secured.coordinator, client_id="lead") as opened:
        opened.subscribe("se/v1/lab/#")
        yield opened


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
    return [*common, *of_devices, "se/v1/other/round", "$SYS/broker/clients"]


def test_no_device_writes_anything_but_its_own_topics(members: dict[str, Probe], coordinator: Probe) -> None:
    expected = []
    for device, member in members.items():
        for topic in all_topics():
            verdict = member.publish(topic, device.encode())
            assert (verdict == NOT_AUTHORIZED) == (topic not in own_topics(device)), (device, topic, verdict)
        expected += [(topic, device.encode()) for topic in own_topics(device)]
    coordinator.publish(TOPICS.round, b"end")
    coordinator.until(lambda: (TOPICS.round, b"end") in coordinator.received)
    assert sorted(coordinator.received) == sorted([*expected, (TOPICS.round, b"end")])


def test_no_device_reads_anything_but_its_own_answers_and_what_is_for_all(
    members: dict[str, Probe], coordinator: Probe
) -> None:
    for member in members.values():
        for topic in own_topics(DEVICES[0]):
            member.publish(topic, b"of a device")
    for topic in all_topics()[:-2]:
        assert coordinator.publish(topic, topic.encode()) != NOT_AUTHORIZED
    coordinator.publish(TOPICS.round, b"end")
    for device, member in members.items():
        member.until(lambda member=member: (TOPICS.round, b"end") in member.received)  # type: ignore[misc]
        readable = {TOPICS.round, TOPICS.chunk(SHA, 0), TOPICS.release, TOPICS.authority, *for_device(device)}
        assert {topic for topic, _ in member.received} == readable


def test_a_newcomer_may_ask_and_read_its_own_answer_and_nothing_else(
    secured: Authority, members: dict[str, Probe], coordinator: Probe
) -> None:
    first, second = "a" * 32, "b" * 32
    trust, port = Tls(secured.folder / "ca.pem"), secured.settings.enrol_port
    login, another = login_of(secured, "pi-07"), login_of(secured, "pi-08")
    with (
        probe(port, trust, client_id=first, login=login) as one,
        probe(port, trust, client_id=second, login=another) as other,
    ):
        for newcomer in (one, other):
            newcomer.subscribe("#")
            newcomer.subscribe("se/v1/lab/enrol/reply/+")
        for topic in all_topics():
            verdict = one.publish(topic, b"from a newcomer")
            assert (verdict == NOT_AUTHORIZED) == (topic != TOPICS.enrol_request("pi-07")), topic
        for device, member in members.items():
            member.publish(TOPICS.status(device), b"online")
        for topic in (TOPICS.round, TOPICS.chunk(SHA, 0), TOPICS.reply("pi-01")):
            coordinator.publish(topic, b"x")
        coordinator.publish(TOPICS.enrol_reply(first), b"for one")
        coordinator.publish(TOPICS.enrol_reply(second), b"for the other")
        one.until(lambda: bool(one.received))
        other.until(lambda: bool(other.received))
        assert set(one.received) == {(TOPICS.enrol_reply(first), b"for one")}
        assert set(other.received) == {(TOPICS.enrol_reply(second), b"for the other")}
    passed_on = [topic for topic, payload in coordinator.received if payload == b"from a newcomer"]
    assert passed_on == [TOPICS.enrol_request("pi-07")]


def lets_in(port: int, tls: Tls, *, login: tuple[str, str] | None = None) -> bool:
    """Whether the broker welcomes an MQTT CONNECT over such a connection."""
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as plain,
            client_context(tls).wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        ):
            connection.sendall(connect_as(*login) if login else CONNECT)
            return connection.recv(4) == CONNACK
    except TimeoutError:
        raise
    except OSError:  # a certificate is refused in the handshake or, with TLS 1.3, right after it
        return False


def test_strangers_are_not_let_in(secured: Authority, tmp_path: Path) -> None:
    settings, trust = secured.settings, Tls(secured.folder / "ca.pem")
    other = make_authority(tmp_path / "other")
    foreign = make_member(other, "pi-01", tmp_path / "foreign").tls
    forged = Tls(trust.ca, foreign.certificate, foreign.key)
    member = make_member(secured, "pi-01", tmp_path / "pi-01").tls
    assert lets_in(settings.port, member)
    assert lets_in(settings.coordinator_port, secured.coordinator)
    assert lets_in(settings.enrol_port, trust, login=login_of(secured, "pi-02"))
    # Who knows no token is not let in, whatever name it gives.
    assert not lets_in(settings.enrol_port, trust)
    assert not lets_in(settings.enrol_port, trust, login=("pi-02", "ab" * 32))
    for port in (settings.port, settings.coordinator_port):
        assert not lets_in(port, trust)
        assert not lets_in(port, forged)
    # A member's certificate is good for one listener, the coordinator's for another.
    assert not lets_in(settings.coordinator_port, member)
    assert not lets_in(settings.port, secured.coordinator)


def test_a_device_does_not_take_a_broker_for_its_own_that_another_authority_vouches_for(
    secured: Authority, tmp_path: Path
) -> None:
    foreign = make_member(make_authority(tmp_path / "other"), "pi-01", tmp_path / "foreign").tls
    for port, tls in ((secured.settings.port, foreign), (secured.settings.enrol_port, Tls(foreign.ca))):
        with pytest.raises(LinkError, match=r"foreign/ca\.pem may be from another fleet"):
            Link("127.0.0.1", port, identity="pi-01", tls=tls).open(timeout_s=LIMIT_S)


@pytest.mark.parametrize("listener", ["port", "enrol_port", "coordinator_port"])
def test_no_listener_speaks_in_the_clear(secured: Authority, listener: str) -> None:
    with socket.create_connection(("127.0.0.1", getattr(secured.settings, listener)), timeout=LIMIT_S) as plain:
        plain.sendall(CONNECT)
        try:
            answer = plain.recv(4)
        except ConnectionResetError:
            answer = b""
    assert not answer.startswith(b"\x20")


def test_a_revoked_device_loses_its_connection_and_gets_no_other(
    secured: Authority, coordinator: Probe, tmp_path: Path
) -> None:
    tls = make_member(secured, "pi-01", tmp_path / "pi-01").tls
    other = make_member(secured, "pi-02", tmp_path / "pi-02").tls
    with probe(secured.settings.port, tls) as live, probe(secured.settings.port, other) as bystander:
        assert live.publish(TOPICS.offer("pi-01")) != NOT_AUTHORIZED
        started_s = time.monotonic()
        outcome = revoke(secured, "pi-01")
        assert (outcome.certificates, outcome.reloaded, outcome.disconnected) == (1, True, True)
        assert live.ended.wait(LIMIT_S - (time.monotonic() - started_s))
        assert not lets_in(secured.settings.port, tls)
        assert bystander.publish(TOPICS.offer("pi-02")) != NOT_AUTHORIZED
        assert not bystander.ended.is_set()


def test_a_revoked_device_does_not_come_back_through_a_tls_session_that_it_kept(
    secured: Authority, tmp_path: Path
) -> None:
    context = client_context(make_member(secured, "pi-01", tmp_path / "pi-01").tls)

    def connect(session: ssl.SSLSession | None) -> tuple[bytes, bool | None, ssl.SSLSession | None]:
        with (
            socket.create_connection(("127.0.0.1", secured.settings.port), timeout=LIMIT_S) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as connection,
        ):
            connection.sendall(CONNECT)
            return connection.recv(4), connection.session_reused, connection.session

    until_s = time.monotonic() + LIMIT_S
    reused: bool | None = False
    while not reused:  # a broker that reads its lists again, as the invitation has it do, forgets earlier sessions
        assert time.monotonic() < until_s
        _, _, session = connect(None)
        answer, reused, _ = connect(session)
    assert answer == CONNACK
    revoke(secured, "pi-01")
    try:
        answer, _, _ = connect(session)
    except OSError:
        answer = b""
    assert answer != CONNACK


def test_a_ban_alone_stops_a_connection_that_is_still_open(
    secured: Authority, coordinator: Probe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparsyedge.coordinator.authority.revocation._take_place", lambda *_: False)
    tls = make_member(secured, "pi-01", tmp_path / "pi-01").tls
    with probe(secured.settings.port, tls) as live:
        live.subscribe("se/v1/lab/#")
        coordinator.publish(TOPICS.round, b"before")
        live.until(lambda: (TOPICS.round, b"before") in live.received)
        assert revoke(secured, "pi-01").reloaded
        until_s = time.monotonic() + LIMIT_S
        while live.publish(TOPICS.offer("pi-01"), b"late") != NOT_AUTHORIZED:
            assert time.monotonic() < until_s
        coordinator.publish(TOPICS.round, b"after")
        coordinator.until(lambda: (TOPICS.round, b"after") in coordinator.received)
        # The verdict on its own message comes after whatever the broker had for it before.
        assert live.publish(TOPICS.offer("pi-01"), b"later") == NOT_AUTHORIZED
        assert (TOPICS.round, b"after") not in live.received
        assert (TOPICS.offer("pi-01"), b"later") not in coordinator.received


def test_a_packet_beyond_the_cap_ends_the_connection_and_reaches_nobody(
    secured: Authority, coordinator: Probe, tmp_path: Path
) -> None:
    tls = make_member(secured, "pi-01", tmp_path / "pi-01").tls
    with probe(secured.settings.port, tls) as live:
        assert live.publish(TOPICS.upload("pi-01", SHA, 0), bytes(1 << 20)) != NOT_AUTHORIZED
        live._client.publish(TOPICS.upload("pi-01", SHA, 1), bytes(2 << 20), qos=1)
        assert live.ended.wait(LIMIT_S)
    coordinator.publish(TOPICS.round, b"end")
    coordinator.until(lambda: (TOPICS.round, b"end") in coordinator.received)
    assert [topic for topic, _ in coordinator.received] == [TOPICS.upload("pi-01", SHA, 0), TOPICS.round]


def test_a_half_open_connection_does_not_keep_the_broker_from_others(secured: Authority, tmp_path: Path) -> None:
    tls = make_member(secured, "pi-01", tmp_path / "pi-01").tls
    with socket.create_connection(("127.0.0.1", secured.settings.port), timeout=LIMIT_S) as silent:
        silent.sendall(b"\x16\x03\x01")
        with probe(secured.settings.port, tls) as live:
            assert live.publish(TOPICS.offer("pi-01")) != NOT_AUTHORIZED


def is_admitted(authority: Authority, login: tuple[str, str]) -> bool:
    """Whether the broker lets a newcomer with this name and password in."""
    link = Link(
        "127.0.0.1",
        authority.settings.enrol_port,
        identity="c" * 32,
        tls=Tls(authority.folder / "ca.pem"),
        login=login,
    )
    try:
        link.open(LIMIT_S)
    except LinkError:
        assert link.is_unknown
        return False
    finally:
        link.close()
    return True


def test_a_token_made_while_the_broker_reads_its_lists_for_another_is_known_too(secured: Authority) -> None:
    # With a long list, the broker is still reading when the next token comes, and would not hear of it.
    bans = mosquitto.access_lists("lab", [f"old-{number}" for number in range(1000)])
    write_atomically(secured.folder / "members.acl", bans["members.acl"].encode())
    for round_ in range(5):
        login_of(secured, f"pi-{round_}")
        second = login_of(secured, f"tv-{round_}")
        until_s = time.monotonic() + LIMIT_S
        while not is_admitted(secured, second):
            assert time.monotonic() < until_s, "the broker has not heard of the second token"


def test_a_broker_that_is_told_to_read_its_lists_while_it_starts_stays(secured: Authority, tmp_path: Path) -> None:
    other = make_authority(tmp_path / "starting")
    command = [mosquitto.find(), "-c", str(other.folder / mosquitto.CONFIGURATION_NAME)]
    for _ in range(5):
        (other.folder / mosquitto.PID_NAME).unlink(missing_ok=True)
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            until_s = time.monotonic() + LIMIT_S
            while not mosquitto.reload(other.folder):
                assert process.poll() is None
                assert time.monotonic() < until_s
            time.sleep(0.1)
            assert process.poll() is None
            process.terminate()
