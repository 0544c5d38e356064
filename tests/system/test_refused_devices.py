"""What a device says that a real Mosquitto does not let in, and what it does about it."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from fixtures.secured import make_authority, make_member, start_broker

from sparsyedge.coordinator.authority import certificates, mosquitto
from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.authority.cluster import keep_pair
from sparsyedge.coordinator.authority.revocation import revoke
from sparsyedge.edge.errors import LinkError
from sparsyedge.edge.protocol import broker_refusal as refusal
from sparsyedge.edge.protocol import mqtt as link_module
from sparsyedge.edge.protocol import mqtt_client
from sparsyedge.edge.protocol.broker_refusal import retry_delay_s
from sparsyedge.edge.protocol.channel import Connected
from sparsyedge.edge.protocol.mqtt import Link
from sparsyedge.edge.protocol.tls import Tls
from sparsyedge.edge.protocol.topics import Topics

pytestmark = pytest.mark.mosquitto

LIMIT_S = 300.0
STATUS = Topics("lab").status("pi-01")


def why_not(port: int, tls: Tls, host: str = "127.0.0.1") -> str:
    """What a device is told that cannot connect; it is told soon."""
    started_s = time.monotonic()
    with pytest.raises(LinkError) as caught:
        Link(host, port, identity="pi-01", tls=tls).open(timeout_s=LIMIT_S)
    assert time.monotonic() - started_s < LIMIT_S / 2
    assert "check that the broker runs there" not in str(caught.value)
    return str(caught.value)


def until(condition: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < until_s, what
        time.sleep(0.05)


def test_a_revoked_device_hears_that_it_was_revoked(secured: Authority, tmp_path: Path) -> None:
    identity = make_member(secured, "pi-01", tmp_path / "pi-01")
    revoke(secured, "pi-01")
    reason = why_not(secured.settings.port, identity.tls)
    assert f"this device was revoked: the broker refuses the certificate in {identity.folder}" in reason
    assert "ask the operator for a new token, then run `sparsyedge edge enrol FILE`" in reason


def test_a_certificate_that_has_expired_is_said_to_have(secured: Authority, tmp_path: Path) -> None:
    identity = make_member(secured, "pi-01", tmp_path / "pi-01")
    expired = secured.issue(identity._key().public_key(), "pi-01", days=-1)
    (identity.folder / "device.pem").write_bytes(certificates.certificate_pem(expired))
    assert f"certificate in {identity.folder} has expired; ask" in why_not(secured.settings.port, identity.tls)


def test_an_identity_of_another_fleet_is_spoken_of(secured: Authority, tmp_path: Path) -> None:
    other = make_authority(tmp_path / "other")
    foreign = make_member(other, "pi-01", tmp_path / "foreign")
    assert f"{foreign.folder}/ca.pem may be from another fleet" in why_not(secured.settings.port, foreign.tls)
    forged = Tls(secured.folder / "ca.pem", foreign.tls.certificate, foreign.tls.key)
    assert f"the identity in {foreign.folder} may be from another fleet" in why_not(secured.settings.port, forged)


def test_a_newcomer_at_the_port_of_members_is_told(secured: Authority) -> None:
    assert "requires a certificate" in why_not(secured.settings.port, Tls(secured.folder / "ca.pem"))


@pytest.fixture
def expired_broker(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Iterator[Authority]:
    """A broker that listens at 127.0.0.2 besides, and whose certificate, for 127.0.0.1, has expired."""
    yield from run_broker(authority, monkeypatch, days=-1)


@pytest.fixture
def other_address(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Iterator[Authority]:
    """A broker that listens at an address that its certificate does not name."""
    conf = authority.folder / mosquitto.CONFIGURATION_NAME
    member = f"listener {authority.settings.port} 127.0.0.1"
    assert member in conf.read_text()
    conf.write_text(conf.read_text().replace(member, member.replace("127.0.0.1", "127.0.0.2")))
    yield from run_broker(authority, monkeypatch, days=100)


def run_broker(authority: Authority, monkeypatch: pytest.MonkeyPatch, *, days: int) -> Iterator[Authority]:
    key = certificates.new_key()
    with monkeypatch.context() as patch:
        patch.setattr(certificates, "AUTHORITY_DAYS", days)
        issued = certificates.issue_server(*authority._pair(), key.public_key(), hosts=["127.0.0.1"])
    keep_pair(authority.folder, "server", key, issued)
    process = start_broker(mosquitto.find(), authority)
    try:
        yield authority
    finally:
        process.terminate()
        process.wait(timeout=LIMIT_S)


def test_a_broker_whose_certificate_has_expired_is_named(expired_broker: Authority, tmp_path: Path) -> None:
    identity = make_member(expired_broker, "pi-01", tmp_path / "pi-01")
    reason = why_not(expired_broker.settings.port, identity.tls)
    assert "the broker's certificate has expired by this device's clock (20" in reason


def test_an_address_that_the_broker_is_not_certified_for_is_named(other_address: Authority, tmp_path: Path) -> None:
    identity = make_member(other_address, "pi-01", tmp_path / "pi-01")
    reason = why_not(other_address.settings.port, identity.tls, host="127.0.0.2")
    assert "the broker's certificate is not valid for 127.0.0.2; use a name or address" in reason
    assert "coordinator init --host" in reason


def test_a_device_that_is_revoked_while_it_runs_says_so_once_and_comes_back_when_it_is_enrolled_again(
    secured: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(refusal, "FIRST_DELAY_S", 0.05)
    monkeypatch.setattr(refusal, "MAX_DELAY_S", 0.1)
    monkeypatch.setattr(mqtt_client, "RECONNECT_MAX_S", 1)
    monkeypatch.setattr(link_module, "RECONNECT_JITTER_S", 0.1)
    identity = make_member(secured, "pi-01", tmp_path / "pi-01")
    link = Link("127.0.0.1", secured.settings.port, identity="pi-01", tls=identity.tls)
    link.open(LIMIT_S)
    try:
        assert isinstance(link.receive(LIMIT_S), Connected)
        revoke(secured, "pi-01")
        until(lambda: link._admission._refusals >= 3, "three refusals")
        with pytest.raises(LinkError, match="takes no message: this device was revoked"):
            link.publish(STATUS, b"x", timeout_s=0.1)
        errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
        assert len(errors) == 1
        assert "this device was revoked" in errors[0]
        make_member(secured, "pi-01", tmp_path / "pi-01")
        assert mosquitto.reload(secured.folder)
        assert isinstance(link.receive(LIMIT_S), Connected)
        link.publish(STATUS, b"x", timeout_s=LIMIT_S)
    finally:
        link.close()


def test_a_broker_that_is_only_away_is_not_taken_for_one_that_refuses(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    identity = make_member(authority, "pi-01", tmp_path / "pi-01")
    broker = start_broker(mosquitto.find(), authority)
    link = Link("127.0.0.1", authority.settings.port, identity="pi-01", tls=identity.tls)
    try:
        link.open(LIMIT_S)
        assert isinstance(link.receive(LIMIT_S), Connected)
        broker.terminate()
        broker.wait(LIMIT_S)
        until(lambda: not link._up, "the loss")
        time.sleep(2.0)
        broker = start_broker(mosquitto.find(), authority)
        assert isinstance(link.receive(LIMIT_S), Connected)
    finally:
        link.close()
        broker.terminate()
        broker.wait(LIMIT_S)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert "connected to the broker at 127.0.0.1" in caplog.text


def test_a_link_that_waits_long_closes_at_once(
    secured: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusal, "FIRST_DELAY_S", 300.0)
    identity = make_member(secured, "pi-01", tmp_path / "pi-01")
    link = Link("127.0.0.1", secured.settings.port, identity="pi-01", tls=identity.tls)
    link.open(LIMIT_S)
    revoke(secured, "pi-01")
    until(lambda: link.is_refused, "the refusal")
    closing = threading.Thread(target=link.close)
    closing.start()
    closing.join(LIMIT_S)
    assert not closing.is_alive()


def device_of(authority: Authority, folder: Path, **environment: str) -> subprocess.Popen[str]:
    """A device process whose identity was revoked."""
    identity = make_member(authority, "pi-01", folder / "pi-01")
    revoke(authority, "pi-01")
    images, labels = np.zeros((4, 8, 8, 1), np.uint8), np.arange(4) % 2
    np.savez(folder / "mine.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    (folder / "device.toml").write_text(
        f'id = "pi-01"\nfleet = "lab"\nmeter = "none"\nidle_s = 0\nidentity = "{identity.folder.name}"\n'
        f'work_dir = "work"\n[broker]\nport = {authority.settings.port}\n[data]\ndataset = "mine.npz"\n'
    )
    command = [sys.executable, "-m", "sparsyedge.edge", "--config", str(folder / "device.toml")]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})


def test_a_device_that_a_person_starts_ends_with_the_reason(secured: Authority, tmp_path: Path) -> None:
    device = device_of(secured, tmp_path)
    _, said = device.communicate(timeout=LIMIT_S)
    assert device.returncode == 2
    assert said.splitlines()[-1].startswith("sparsyedge: error: cannot connect to the MQTT broker")
    assert "this device was revoked" in said


def test_a_device_that_a_service_manager_starts_stays_alive_and_waits(secured: Authority, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(LIMIT_S)
        device = device_of(secured, tmp_path, NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="2000000")
        try:
            heard = [manager.recv(4096).decode() for _ in range(5)]
        finally:
            device.terminate()
            _, said = device.communicate(timeout=LIMIT_S)
    assert heard[0] == "READY=1"
    assert "this device was revoked" in heard[1]
    assert heard[2:].count("WATCHDOG=1") >= 2
    assert len([line for line in said.splitlines() if "was revoked" in line]) == 1
    assert device.returncode == -signal.SIGTERM


def test_the_wait_grows_to_minutes() -> None:
    delays = [retry_delay_s(tries) for tries in range(12)]
    assert delays[:3] == [5.0, 10.0, 20.0]
    assert delays == sorted(delays)
    assert delays[-1] == retry_delay_s(10_000) == 300.0
