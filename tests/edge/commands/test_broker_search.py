"""Where a device connects: what its config names, or what it finds."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest
from fixtures.multicast import Announce, unique_fleet
from fixtures.secured import make_member

from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.edge.commands import broker_search
from sparsyedge.edge.commands.broker_search import broker_places
from sparsyedge.edge.config import BrokerConfig, DataConfig, DeviceConfig
from sparsyedge.edge.device.board_sign import BoardSign
from sparsyedge.edge.device.notify import Supervisor
from sparsyedge.edge.errors import ConfigError, LinkError
from sparsyedge.edge.protocol.finder import Finder
from sparsyedge.edge.protocol.mdns import Announced, authority_fingerprint
from sparsyedge.edge.protocol.route import Address

DATA = DataConfig(dataset="digits")
LIMIT_S = 300.0


def test_a_device_with_a_broker_in_its_config_does_not_look_elsewhere(authority: Authority, tmp_path: Path) -> None:
    identity = make_member(authority, "d1", tmp_path / "d1")
    config = DeviceConfig(id="d1", data=DATA, identity=str(tmp_path), broker=BrokerConfig(host="coordinator", port=7))
    assert broker_places(config, identity, None) == ([Address("coordinator", 7)], None)


def test_a_device_without_an_authority_keeps_to_this_machine() -> None:
    assert broker_places(DeviceConfig(id="d1", data=DATA), None, None) == ([Address("127.0.0.1", 1883)], None)


def test_a_device_without_an_authority_may_not_look_since_anyone_can_answer() -> None:
    with pytest.raises(ConfigError, match="key `find_broker` is true and `identity` is left out: anyone"):
        broker_places(DeviceConfig(id="d1", data=DATA, find_broker=True), None, None)


def test_a_device_that_is_told_of_a_broker_and_may_look_tries_the_one_it_was_told_of_first(
    authority: Authority, tmp_path: Path
) -> None:
    identity = make_member(authority, "d1", tmp_path / "d1")
    config = DeviceConfig(
        id="d1", data=DATA, identity=str(tmp_path), broker=BrokerConfig(host="coordinator", port=7), find_broker=True
    )
    places, find = broker_places(config, identity, None)
    assert places == [Address("coordinator", 7)]
    assert find is not None


def test_a_device_without_a_broker_waits_says_for_whom_and_takes_the_first_that_is_announced(
    announce: Announce,
    authority: Authority,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broker_search, "search_delay_s", lambda tries: 0.0)
    identity, fleet = make_member(authority, "d1", tmp_path / "d1"), unique_fleet()
    config = DeviceConfig(id="d1", data=DATA, fleet=fleet, identity=str(tmp_path))
    with pytest.raises(LinkError, match=f"waiting for the broker of fleet {fleet}: nobody on this network"):
        broker_places(config, identity, None)
    found: list[Address] = []
    waiting = threading.Thread(target=lambda: found.extend(broker_places(config, identity, Supervisor())[0]))
    with caplog.at_level(logging.WARNING):
        waiting.start()
        ca = authority_fingerprint(identity.tls.ca)
        announce(Announced(fleet=fleet, authority=ca, port=7, enrol_port=8, addresses=("127.0.0.1",)))
        waiting.join(LIMIT_S)
    assert found == [Address("127.0.0.1", 7)]


def test_a_device_that_finds_no_broker_shows_that_at_the_board(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody is found at the second look; until then the board shows whom it waits for."""
    shown = BoardSign({"RUNTIME_DIRECTORY": str(tmp_path)})
    sentences: list[str] = []

    def look(finder: Finder) -> list[Address]:
        sentences.append((tmp_path / "status").read_text() if sentences else "")
        return [Address("127.0.0.1", 7)] if len(sentences) > 1 else []

    monkeypatch.setattr(Finder, "look", look)
    monkeypatch.setattr(broker_search, "search_delay_s", lambda tries: 0.0)
    identity = make_member(authority, "d1", tmp_path / "d1")
    config = DeviceConfig(id="d1", data=DATA, fleet="lab", identity=str(tmp_path))
    broker_places(config, identity, Supervisor({}), shown)
    assert sentences[1].startswith("trouble\nwaiting for the broker of fleet lab")
