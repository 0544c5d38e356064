"""`sparsyedge edge enrol` against a real Mosquitto and a coordinator that answers."""

from __future__ import annotations

import json
import logging
import stat
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from fixtures.multicast import Announce, unique_fleet
from fixtures.secured import free_ports, login_of, make_authority

from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.authority.enrolment_service import serving
from sparsyedge.coordinator.authority.revocation import revoke
from sparsyedge.edge.commands import enrol_command
from sparsyedge.edge.commands.enrol_command import enrol, main
from sparsyedge.edge.config import DataConfig, DeviceConfig, PartitionConfig, broker_list, load_config
from sparsyedge.edge.errors import LinkError, SecurityError
from sparsyedge.edge.protocol.finder import Finder
from sparsyedge.edge.protocol.mdns import Announced, authority_fingerprint
from sparsyedge.edge.protocol.mqtt import Link
from sparsyedge.edge.protocol.tls import Tls
from sparsyedge.edge.security.enrolment_messages import DeviceFile, read_device_file, write_device_file
from sparsyedge.edge.security.identity import Identity

pytestmark = pytest.mark.mosquitto

LIMIT_S = 300.0
DATA = DataConfig(dataset="digits", data_dir="/data/ü", partition=PartitionConfig(devices=4, index=2))


@pytest.fixture
def answering(secured: Authority) -> Iterator[Authority]:
    """A secured fleet whose newcomers are answered."""
    with serving(secured):
        yield secured


def test_a_device_becomes_a_member_and_its_token_is_gone(answering: Authority, tmp_path: Path) -> None:
    file, folder = tmp_path / "device.json", tmp_path / "identity"
    write_device_file(file, answering.invite("pi-01", data=DATA))
    assert main([str(file), "--identity", str(folder)]) == 0
    identity = Identity.open(folder)
    assert identity.is_of("pi-01")
    assert identity.signing_keys == (answering.signing_key,)
    assert read_device_file(file).token is None
    config = load_config(folder / "device.toml", DeviceConfig)
    assert (config.id, config.fleet, config.data) == ("pi-01", "lab", DATA)
    (broker,) = broker_list(config.broker)
    assert (config.identity, broker.port) == (str(folder), answering.settings.port)
    link = Link(broker.host, broker.port, identity="pi-01", tls=identity.tls)
    link.open(LIMIT_S)
    link.close()
    # Run it again, like a service that starts at every boot.
    assert main([str(file), "--identity", str(folder)]) == 0


def test_a_device_is_given_a_config_that_works_from_any_folder(
    answering: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "card").mkdir()
    write_device_file(tmp_path / "card" / "pi.json", answering.invite("pi-01", data=DataConfig(dataset="mine.npz")))
    monkeypatch.chdir(tmp_path)
    assert main(["card/pi.json", "--identity", "identity", "--work-dir", "work"]) == 0
    assert f"start it with: sparsyedge edge --config {tmp_path}/identity/device.toml" in capsys.readouterr().out
    monkeypatch.chdir("/")
    written = tomllib.loads((tmp_path / "identity" / "device.toml").read_text())
    assert written["data"]["dataset"] == str(tmp_path / "card" / "mine.npz")
    assert (written["work_dir"], written["identity"]) == (str(tmp_path / "work"), str(tmp_path / "identity"))


def test_a_device_whose_answer_was_lost_asks_again_with_the_same_key(answering: Authority, tmp_path: Path) -> None:
    invited = answering.invite("pi-01")
    folder = tmp_path / "identity"
    enrol(invited, folder, timeout_s=LIMIT_S)
    first = (folder / "device.pem").read_bytes()
    (folder / "device.pem").unlink()
    enrol(invited, folder, timeout_s=LIMIT_S)
    assert (folder / "device.pem").read_bytes() == first


def test_a_device_that_is_invited_again_makes_another_key(answering: Authority, tmp_path: Path) -> None:
    folder = tmp_path / "identity"
    enrol(answering.invite("pi-01"), folder, timeout_s=LIMIT_S)
    before = (folder / "device.key").read_bytes()
    revoke(answering, "pi-01")
    identity = enrol(answering.invite("pi-01"), folder, timeout_s=LIMIT_S)
    assert (folder / "device.key").read_bytes() != before
    assert stat.S_IMODE((folder / "device.key").stat().st_mode) == 0o600
    link = Link("127.0.0.1", answering.settings.port, identity="pi-01", tls=identity.tls)
    link.open(LIMIT_S)
    link.close()


def test_a_token_for_another_device_is_refused_with_what_to_do(answering: Authority, tmp_path: Path) -> None:
    stolen = msgspec.structs.replace(answering.invite("pi-01"), device="pi-02")
    with pytest.raises(SecurityError, match=r"does not know the token of pi-02: .* coordinator token pi-02"):
        enrol(stolen, tmp_path / "identity", timeout_s=LIMIT_S)


def test_a_coordinator_of_another_authority_gets_no_token(
    answering: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    other = make_authority(tmp_path / "other")
    invited = msgspec.structs.replace(
        answering.invite("pi-01"), ca=(other.folder / "ca.pem").read_text(encoding="ascii")
    )
    with pytest.raises(LinkError, match=r"identity/ca\.pem may be from another fleet"):
        enrol(invited, tmp_path / "identity", timeout_s=LIMIT_S)
    assert invited.token is not None
    assert invited.token not in caplog.text


def test_where_nobody_answers_the_device_says_what_to_start(secured: Authority, tmp_path: Path) -> None:
    with pytest.raises(SecurityError, match="coordinator enrol"):
        enrol(secured.invite("pi-01"), tmp_path / "identity", timeout_s=15.0)


def test_no_secret_is_logged_on_the_way(
    answering: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    invited = answering.invite("pi-01", data=DATA)
    file, folder = tmp_path / "device.json", tmp_path / "identity"
    write_device_file(file, invited)
    main([str(file), "--identity", str(folder)])
    with pytest.raises(SecurityError):
        enrol(invited, tmp_path / "thief", timeout_s=LIMIT_S)
    printed = capfd.readouterr()
    everything = caplog.text + printed.out + printed.err
    key = "".join((folder / "device.key").read_text().splitlines()[1:-1])
    assert invited.token is not None
    for secret in (invited.token, key, "PRIVATE KEY"):
        assert secret not in everything
    assert "enrolled pi-01" in everything


def rubbish(authority: Authority, payloads: list[bytes]) -> None:
    link = Link(
        "127.0.0.1",
        authority.settings.enrol_port,
        identity="c" * 32,
        tls=Tls(authority.folder / "ca.pem"),
        login=login_of(authority, "pi-66"),
    )
    until_s = time.monotonic() + LIMIT_S
    while True:  # the broker needs a moment to read which tokens there are
        try:
            link.open(LIMIT_S)
            break
        except LinkError:
            assert link.is_unknown
            assert time.monotonic() < until_s
    for payload in payloads:
        link.publish("se/v1/lab/enrol/req/pi-66", payload)
    link.close()


def test_rubbish_from_newcomers_is_counted_and_stops_nobody(answering: Authority, tmp_path: Path) -> None:
    # A first enrolment shows that the service is listening; the broker keeps nothing for a service that is not.
    enrol(answering.invite("pi-00"), tmp_path / "another", timeout_s=LIMIT_S)
    invited = answering.invite("pi-01")
    request = {"device": "pi-01", "token": invited.token, "csr": "x", "reply": "c" * 32}
    payloads = [b"", b"\xff", b"[" * 5000, json.dumps({**request, "reply": "../../x"}).encode(), b"x" * 100_000]
    rubbish(answering, [*payloads, json.dumps({**request, "csr": "x" * 9000}).encode()])
    enrol(invited, tmp_path / "identity", timeout_s=LIMIT_S)
    counts: dict[str, int] = {}
    until_s = time.monotonic() + LIMIT_S
    while sum(counts.values()) < 6 and time.monotonic() < until_s:  # the service writes them once a second
        with answering.ledger() as ledger:
            counts = {refusal.reason: refusal.count for refusal in ledger.refusals()}
    assert counts == {"the request cannot be read": 6}


@pytest.mark.parametrize("device", ["pi-01", "pi-02"])
def test_a_file_without_a_token_enrols_nobody(answering: Authority, tmp_path: Path, device: str) -> None:
    spent: DeviceFile = msgspec.structs.replace(answering.invite(device), token=None)
    file = tmp_path / "device.json"
    write_device_file(file, spent)
    with pytest.raises(SecurityError, match="no token any more"):
        main([str(file), "--identity", str(tmp_path / "identity")])


def test_a_device_whose_file_names_an_old_address_finds_the_coordinator(
    announce: Announce, answering: Authority, tmp_path: Path
) -> None:
    """The card was made before the coordinator got another address; its config then lets it look as well."""
    fleet, (gone,) = unique_fleet(), free_ports(1)
    ours = authority_fingerprint(answering.folder / "ca.pem")
    impostor = make_authority(tmp_path / "impostor")
    theirs = authority_fingerprint(impostor.folder / "ca.pem")
    settings, loopback = answering.settings, ("127.0.0.1",)
    announce(Announced(fleet=fleet, authority=theirs, port=gone, enrol_port=gone, addresses=loopback))
    announce(
        Announced(
            fleet=fleet,
            authority=ours,
            port=settings.port,
            enrol_port=settings.enrol_port,
            addresses=loopback,
        )
    )
    invited = msgspec.structs.replace(answering.invite("pi-01", data=DATA), enrol_port=gone, find=True)
    # Only the name that is looked for is another: the fleet of this test has one that others use too.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(enrol_command, "Finder", lambda name, ca, **kind: Finder(fleet, ca, **kind))
        identity = enrol(invited, tmp_path / "identity", timeout_s=LIMIT_S)
    assert identity.is_of("pi-01")


def test_a_config_says_that_the_device_may_look_for_its_broker(answering: Authority, tmp_path: Path) -> None:
    file, folder = tmp_path / "device.json", tmp_path / "identity"
    write_device_file(file, msgspec.structs.replace(answering.invite("pi-01", data=DATA), find=True))
    assert main([str(file), "--identity", str(folder)]) == 0
    assert load_config(folder / "device.toml", DeviceConfig).find_broker
