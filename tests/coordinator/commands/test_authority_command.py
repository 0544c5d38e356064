"""The commands of a secured fleet: their output, and what they refuse."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from sparsyedge.coordinator.commands.coordinator_command import main
from sparsyedge.edge.errors import SparsyedgeError
from sparsyedge.edge.security.enrolment_messages import read_device_file


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with an authority in ./fleet."""
    monkeypatch.chdir(tmp_path)
    assert main(["init", "fleet", "--host", "nas.lan,192.168.1.7"]) == 0
    return tmp_path


def test_init_makes_a_broker_configuration_without_anything_in_the_clear(folder: Path) -> None:
    lines = (folder / "fleet" / "mosquitto.conf").read_text().splitlines()
    listeners = [line for line in lines if line.startswith("listener ")]
    assert listeners == ["listener 8883 0.0.0.0", "listener 8884 0.0.0.0", "listener 8885 127.0.0.1"]
    for required in ("certfile", "keyfile", "cafile", "acl_file"):
        assert sum(line.startswith(f"{required} ") for line in lines) == len(listeners), required
    assert lines.count("require_certificate true") == 2


def test_token_writes_a_private_file_for_one_device(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "pi-01", "--dataset", "digits", "--share", "1/4"]) == 0
    path = folder / "sparsyedge-device.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    device = read_device_file(path)
    assert (device.device, device.host, device.port, device.enrol_port) == ("pi-01", "nas.lan", 8883, 8884)
    assert device.data is not None
    assert device.data.partition is not None
    assert (device.data.partition.index, device.data.partition.devices) == (1, 4)
    assert device.token is not None
    assert device.token not in capsys.readouterr().out


def test_identities_show_nobody_at_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "pi-01"]) == 0
    capsys.readouterr()
    assert main(["identities", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"members": [], "refusals": []}
    assert main(["identities"]) == 0


def test_revoke_without_a_broker_says_what_to_copy(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["token", "pi-01"])
    assert main(["revoke", "pi-01"]) == 0
    assert "copy crl.pem and members.acl" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["init", "fleet", "--host", "nas.lan"], "already holds an authority"),
        (["init", "new", "--host", ""], "hosts"),
        (["init", "new", "--host", "a b"], "hosts"),
        (["init", "new", "--host", "nas.lan", "--fleet", "a/b"], "fleet"),
        (["init", "new", "--host", "nas.lan", "--bind", "everywhere"], "bind"),
        (["init", "new", "--host", "nas.lan", "--port", "0"], "port"),
        (["init", "new", "--host", "nas.lan", "--port", "8884"], "three different"),
        (["init", "fleet/ca.pem/new", "--host", "nas.lan"], "cannot make the folder"),
        (["token", "a/b"], "cannot be a device's id"),
        (["token", "@coordinator"], "cannot be a device's id"),
        (["token", "pi-01", "--share", "0/4"], "add `--dataset`"),
        (["token", "pi-01", "--dataset", "digits", "--share", "4/4"], "INDEX/DEVICES"),
        (["token", "pi-01", "--dataset", "digits", "--share", "x"], "INDEX/DEVICES"),
        (["token", "pi-01", "--out", "absent/x/../../fleet/ca.pem/x.json"], "cannot write"),
        (["token", "pi-01", "--dir", "absent"], "coordinator init absent"),
        (["revoke", "pi-01"], "no device 'pi-01'"),
        (["sign", "absent"], "no manifest"),
        (["broker", "--dir", "absent"], "coordinator init absent"),
        (["enrol", "--dir", "absent"], "coordinator init absent"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_it(folder: Path, words: list[str], reason: str) -> None:
    with pytest.raises(SparsyedgeError, match=reason) as caught:
        main(words)
    assert "\n" not in str(caught.value)
    assert not (folder / "new").exists()
