"""A card that knows no address: two hosts in one network, and a coordinator that announces itself."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from fixtures.bench import Bench
from fixtures.two_hosts import Host

pytestmark = pytest.mark.mosquitto

NOBODY = "10.203.77.99"
IMPOSTORS_PORTS = ("--port", "9883", "--enrol-port", "9884", "--coordinator-port", "9885")


def _is_announced(coordinator: Bench, folder: str) -> bool:
    return "is announced on the local network" in coordinator.log(f"enrol-{folder}")


def test_a_device_finds_its_coordinator_in_the_network_and_not_another_fleets(
    tmp_path: Path, two_hosts: tuple[Host, Host]
) -> None:
    """The address that `init` was told is nobody's; another coordinator there calls its fleet the same."""
    there, here = two_hosts
    coordinator, device = Bench(tmp_path, prefix=there.prefix), Bench(tmp_path, prefix=here.prefix)
    try:
        for folder, ports in (("impostor", IMPOSTORS_PORTS), ("fleet", ())):
            coordinator.call("coordinator", "init", folder, "--fleet", "lab", "--host", NOBODY, *ports)
            coordinator.start(f"broker-{folder}", "coordinator", "broker", "--dir", folder)
            coordinator.start(f"enrol-{folder}", "coordinator", "enrol", "--dir", folder)
            coordinator.wait_until(partial(_is_announced, coordinator, folder), "the announcement")
        assert f"fleet lab is announced on the local network at {there.address}" in coordinator.log("enrol-fleet")
        coordinator.call("coordinator", "token", "pi-01", "--dataset", "digits", "--find", "--out", "pi-01.json")
        assert json.loads((tmp_path / "pi-01.json").read_text())["host"] == NOBODY

        device.call("edge", "enrol", "pi-01.json", "--identity", "identity", "--work-dir", "work", "--timeout", "120")
        config = tmp_path / "identity" / "device.toml"
        assert "find_broker = true" in config.read_text()
        device.start("named", "edge", "--config", str(config))
        device.wait_until(lambda: f"joined fleet lab at {there.address}:8883" in device.log("named"), "the join")

        # The same without any address in its config.
        text = config.read_text()
        config.write_text(text.replace(f'[broker]\nhost = "{NOBODY}"\nport = 8883\n', ""))
        assert config.read_text() != text
        device.start("unnamed", "edge", "--config", str(config))
        device.wait_until(lambda: f"joined fleet lab at {there.address}:8883" in device.log("unnamed"), "the join")
        assert "enrolled pi-01" not in coordinator.log("enrol-impostor")
    finally:
        device.end()
        coordinator.end()
