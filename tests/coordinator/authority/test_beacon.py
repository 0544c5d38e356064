"""Whether a fleet's broker is announced on the local network."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest
from fixtures.secured import make_authority

from sparsyedge.coordinator.authority.authority import Authority, Settings
from sparsyedge.coordinator.authority.beacon import announcing
from sparsyedge.coordinator.authority.cluster import Node
from sparsyedge.coordinator.commands.coordinator_command import main
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.protocol.mdns import Broadcast
from sparsyedge.edge.security.enrolment_messages import read_device_file

EVERYWHERE = Settings(hosts=("coordinator",), fleet="lab")
NODES = tuple(Node(host=f"node-{number}", port=8883, cluster_port=6222) for number in range(3))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when something would be announced; nothing is."""
    happened = threading.Event()
    monkeypatch.setattr(Broadcast, "open", lambda self: happened.set())
    return happened


@pytest.mark.parametrize(
    "settings",
    [
        msgspec.structs.replace(EVERYWHERE, bind="127.0.0.1"),
        msgspec.structs.replace(EVERYWHERE, bind="::1"),
        msgspec.structs.replace(EVERYWHERE, bind="fd00::7"),
        msgspec.structs.replace(EVERYWHERE, announce=False),
        msgspec.structs.replace(EVERYWHERE, nodes=NODES),
    ],
    ids=["loopback", "loopback of IPv6", "IPv6 alone", "switched off", "a cluster"],
)
def test_a_broker_that_nobody_could_find_or_should_is_not_announced(
    settings: Settings, authority: Authority, opened: threading.Event
) -> None:
    with announcing(Authority(authority.folder, settings)):
        assert not any(thread.name == "beacon" for thread in threading.enumerate())
    assert not opened.is_set()


def test_a_fleet_without_an_authority_is_not_announced(opened: threading.Event) -> None:
    with announcing(None):
        assert not any(thread.name == "beacon" for thread in threading.enumerate())
    assert not opened.is_set()


def test_a_broker_at_an_address_of_a_network_is_announced_until_the_end(
    authority: Authority, opened: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    with announcing(Authority(authority.folder, msgspec.structs.replace(EVERYWHERE, bind="192.0.2.77"))):
        assert opened.wait(300)
    assert "fleet lab is announced on the local network at 192.0.2.77" in caplog.text
    assert not any(thread.name == "beacon" for thread in threading.enumerate())


def test_a_network_that_cannot_be_used_ends_nothing(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = threading.Event()

    def fail(self: Broadcast) -> None:
        tried.set()
        raise OSError("no such device")

    monkeypatch.setattr(Broadcast, "open", fail)
    with announcing(Authority(authority.folder, msgspec.structs.replace(EVERYWHERE, bind="192.0.2.77"))):
        assert tried.wait(300)
    assert "the fleet is not announced on the local network: no such device; trying again" in caplog.text


def test_the_operator_can_switch_it_off_for_good(tmp_path: Path) -> None:
    assert main(["init", str(tmp_path / "quiet"), "--host", "h", "--no-announce"]) == 0
    assert Authority.open(tmp_path / "quiet").settings.announce is False
    assert main(["init", str(tmp_path / "loud"), "--host", "h"]) == 0
    # The file is as it was before the key existed, for an older sparsyedge that reads it.
    assert "announce" not in (tmp_path / "loud" / "fleet.json").read_text()


def test_a_token_can_let_its_device_look_for_the_broker(tmp_path: Path) -> None:
    authority, file = make_authority(tmp_path / "fleet"), tmp_path / "d.json"
    assert main(["token", "pi-01", "--dir", str(authority.folder), "--out", str(file), "--find"]) == 0
    assert read_device_file(file).find
    assert main(["token", "pi-01", "--dir", str(authority.folder), "--out", str(file)]) == 0
    assert "find" not in file.read_text()


def test_a_device_of_a_cluster_has_nothing_to_look_for(tmp_path: Path) -> None:
    assert main(["init", str(tmp_path / "fleet"), "--host", "a,b,c", "--broker", "nats"]) == 0
    with pytest.raises(ConfigError, match="names the nodes of its cluster already"):
        main(["token", "pi-01", "--dir", str(tmp_path / "fleet"), "--out", str(tmp_path / "d.json"), "--find"])
