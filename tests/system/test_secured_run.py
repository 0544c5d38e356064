"""A secured fleet from its authority to a device that is shut out, in real processes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fixtures.bench import LIMIT_S, Bench
from fixtures.secured import free_ports

from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.protocol.channel import Received

DEVICES = ("pi-01", "pi-02")

pytestmark = pytest.mark.mosquitto


@pytest.fixture
def bench(tmp_path: Path, secured_ports: list[str], digits_artifacts: Artifacts) -> Iterator[Bench]:
    """A folder with an authority, its broker, and artifacts that nobody has signed yet."""
    bench = Bench(tmp_path)
    try:
        bench.call("coordinator", "init", "fleet", "--host", "127.0.0.1", "--bind", "127.0.0.1", *secured_ports)
        bench.start("broker", "coordinator", "broker")
        shutil.copytree(digits_artifacts.directory, tmp_path / "artifacts")
        (tmp_path / "run.toml").write_text(
            'name = "digits"\nartifacts = "artifacts"\nrun_dir = "run"\ndataset = "digits"\nauthority = "fleet"\n'
            "rounds = 500\ncohort_size = 2\nmin_updates = 1\nmin_devices = 2\ndeadline_s = 20.0\n"
            "[learning_rate]\nstart = 0.2\nend = 0.05\n"
        )
        yield bench
    finally:
        bench.end()


@pytest.fixture
def secured_ports() -> list[str]:
    member, newcomer, coordinator = free_ports(3)
    return ["--port", str(member), "--enrol-port", str(newcomer), "--coordinator-port", str(coordinator)]


def forge_tasks(bench: Bench) -> None:
    """As somebody with the coordinator's certificate: the present task, altered, in the place of the right one."""
    with closing(Authority.open(bench.folder / "fleet").link("rogue")) as rogue:
        rogue.subscribe("se/v1/default/round")
        rogue.open()
        seen: list[bytes] = []

        def listen() -> bool:
            event = rogue.receive(0.1)
            if isinstance(event, Received) and event.payload:
                seen.append(event.payload)
            return bool(seen)

        bench.wait_until(listen, "a task")
        honest = json.loads(seen[0])
        huge = {**honest["model"], "bytes": 1 << 30}
        for changes in ({"sparsity": 0.1}, {"epochs": 10**9}, {"model": huge}, {"state": "finished"}, {"run": "mine"}):
            rogue.publish("se/v1/default/round", json.dumps({**honest, **changes}).encode(), retain=True)


def test_devices_enrol_train_refuse_forged_tasks_and_are_shut_out(bench: Bench) -> None:
    assert "coordinator sign" in bench.call("coordinator", "run", "run.toml", code=2)
    bench.call("coordinator", "sign", "artifacts")
    coordinator = bench.start("coordinator", "coordinator", "run", "run.toml")

    for index, device in enumerate(DEVICES):
        file, identity = f"{device}.json", f"identity-{device}"
        bench.call("coordinator", "token", device, "--dataset", "digits", "--share", f"{index}/2", "--out", file)
        token = json.loads((bench.folder / file).read_text())["token"]
        bench.call("edge", "enrol", file, "--identity", identity, "--work-dir", "work", "--timeout", "120")
        assert "token" not in json.loads((bench.folder / file).read_text())
        # The file that was used up makes nobody else a member.
        stolen = {**json.loads((bench.folder / file).read_text()), "token": token}
        (bench.folder / "stolen.json").write_text(json.dumps(stolen))
        assert "used already" in bench.call("edge", "enrol", "stolen.json", "--identity", f"thief-{device}", code=2)
        bench.start(device, "edge", "--config", f"{identity}/device.toml")
    bench.wait_until(lambda: bench.rounds_closed() >= 2, "the end of round 2")

    forge_tasks(bench)
    bench.wait_until(lambda: all("refused a task" in bench.log(device) for device in DEVICES), "the refusals")
    with_both = bench.rounds_closed() + 2
    bench.wait_until(lambda: bench.rounds_closed() >= with_both, "two more rounds")

    said = bench.call("coordinator", "revoke", "pi-02")
    assert "ended its connection" in said
    at_most = bench.rounds_closed() + 1
    bench.wait_until(lambda: bench.rounds_closed() >= at_most + 2, "two rounds without the revoked device")
    bench.call("coordinator", "stop", "run")
    assert coordinator.wait(LIMIT_S) == 0, bench.log("coordinator")

    with closing(Store.open(bench.folder / "run")) as store:
        taken = {number: set(store.accepted(number)) for number in range(1, len(store.rounds()) + 1)}
    assert all(taken[number] == set(DEVICES) for number in range(1, with_both + 1))
    assert all(devices == {"pi-01"} for number, devices in taken.items() if number > at_most)
    assert "lost the broker" in bench.log("pi-02")
    members = json.loads(bench.call("coordinator", "identities", "--json"))
    assert {member["device"]: member["revoked_at"] is None for member in members["members"]} == {
        "pi-01": True,
        "pi-02": False,
    }
    assert sum(refusal["count"] for refusal in members["refusals"]) == 2
