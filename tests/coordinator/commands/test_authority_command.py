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


def test_init_makes_a_cluster_of_three_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "fleet", "--broker", "nats", "--host", "a.lan,b.lan,c.lan"]) == 0
    assert "coordinator broker --node 3 --dir fleet" in capsys.readouterr().out
    for number in (1, 2, 3):
        node = tmp_path / "fleet" / "nodes" / str(number)
        assert {path.name for path in node.iterdir()} == {
            *("nats.conf", "users.conf", "server.pem", "server.key", "route.pem", "route.key"),
            *("clients-ca.pem", "routes-ca.pem"),
        }
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in (*node.glob("*.key"), node / "users.conf"))
        text = (node / "nats.conf").read_text()
        assert text.count("verify_and_map: true") == 2
        assert "deny" not in text + (node / "users.conf").read_text()
    assert not (tmp_path / "fleet" / "mosquitto.conf").exists()
    assert main(["token", "pi-01"]) == 0
    device = read_device_file(tmp_path / "sparsyedge-device.json")
    assert {device.host, *(broker.host for broker in device.others)} == {"a.lan", "b.lan", "c.lan"}
    assert device.entry_key is not None
    assert main(["revoke", "pi-01"]) == 0
    assert "copy nodes/N/users.conf to where node N does" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["init", "x", "--broker", "nats", "--host", "a,b"], "`--host` names a, b; `--broker nats` needs 3 machines"),
        (["init", "x", "--broker", "nats", "--host", "a", "--fleet", "a.b"], "cannot be the name of a fleet over NATS"),
        (["broker"], "`--node` is not given; this fleet's cluster has the nodes 1 to 3"),
        (["broker", "--node", "4"], "`--node` is 4; this fleet's cluster has the nodes 1 to 3"),
    ],
)
def test_mistakes_with_clusters_are_sentences(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "fleet", "--broker", "nats", "--host", "127.0.0.1"]) == 0
    with pytest.raises(SparsyedgeError) as caught:
        main(arguments)
    assert sentence in str(caught.value)


def test_a_mosquitto_has_no_nodes(folder: Path) -> None:
    with pytest.raises(SparsyedgeError, match="is a Mosquitto; leave it out"):
        main(["broker", "--node", "1"])


def test_a_program_of_the_operator_brings_lists_to_other_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "fleet", "--broker", "nats", "--host", "a.lan,b.lan,c.lan"]) == 0
    hook = tmp_path / "fleet" / "reload-nodes"
    hook.write_text("#!/bin/sh\ncp nodes/2/users.conf brought.conf\n")
    hook.chmod(0o700)
    assert main(["token", "pi-01"]) == 0
    assert "enrol.req.pi-01" in (tmp_path / "fleet" / "brought.conf").read_text()
