"""A secured fleet from its authority to a device that is shut out, in real processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fixtures.secured import free_ports

from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.errors import RunError
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.protocol.channel import Received

SPARSYEDGE = str(Path(sys.executable).parent / "sparsyedge")
LIMIT_S = 300.0
DEVICES = ("pi-01", "pi-02")

pytestmark = pytest.mark.mosquitto


class Bench:
    """A folder with processes at work in it; all are ended with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [SPARSYEDGE, *arguments],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
            )
        self._running.append(process)
        return process

    def call(self, *arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [SPARSYEDGE, *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            env=self._environment,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        until_s = time.monotonic() + LIMIT_S
        while not condition():
            if time.monotonic() > until_s:
                logs = {path.name: path.read_text()[-3000:] for path in self.folder.glob("*.log")}
                pytest.fail(f"{what} did not happen within {LIMIT_S:g} s: {json.dumps(logs, indent=1)}")
            time.sleep(0.05)

    def rounds_closed(self) -> int:
        try:
            with closing(Store.open(self.folder / "run")) as store:
                return len(store.rounds())
        except RunError:
            return 0

    def end(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.kill()
            process.wait(LIMIT_S)


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
