"""The trained model back on the device: a real Mosquitto, a real coordinator, real devices that come and go."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.data import load
from sparsyedge.edge.faults import CRASH_VARIABLE, EXIT_CODE
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.storage import sha256_file

pytestmark = [pytest.mark.heavy, pytest.mark.mosquitto]

SPARSYEDGE = str(Path(sys.executable).parent / "sparsyedge")
LIMIT_S = 300.0
ROUNDS = 2


CONFINED = """
import ctypes, sys
from sparsyedge.edge.cli import main
PR_SET_MDWE, REFUSE_EXEC_GAIN = 65, 1
ctypes.CDLL(None).prctl(PR_SET_MDWE, REFUSE_EXEC_GAIN, 0, 0, 0)
sys.exit(main())
"""
"""What MemoryDenyWriteExecute=yes does, where the kernel (6.3) can; elsewhere the call changes nothing."""


class ServiceManager:
    """The socket that systemd would listen on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)

    def heard(self) -> set[bytes]:
        """What services have said so far; all of it, once."""
        found = set()
        with contextlib.suppress(BlockingIOError):
            while True:
                found.add(self._socket.recv(4096))
        return found

    def close(self) -> None:
        self._socket.close()


class Fleet:
    """A run's files, and the processes that a test starts; all are ended with it."""

    def __init__(self, folder: Path, artifacts: Path, port: int) -> None:
        self.folder = folder
        self._port = port
        self._running: list[subprocess.Popen[bytes]] = []
        (folder / "run.toml").write_text(
            f'name = "digits"\nartifacts = "{artifacts}"\nrun_dir = "{folder / "run"}"\ndataset = "digits"\n'
            f"rounds = {ROUNDS}\ncohort_size = 1\nmin_devices = 1\nepochs = 1\nseed = 1\ndeadline_s = {LIMIT_S}\n"
            f"[learning_rate]\nstart = 0.2\nend = 0.05\n[broker]\nport = {port}\n"
        )

    def add(self, device: str, settings: str = "") -> Path:
        """Write a device's config, with these further keys; returns its path."""
        path = self.folder / f"{device}.toml"
        path.write_text(
            f'id = "{device}"\nwork_dir = "{self.folder / "work"}"\nthreads = 1\nidle_s = 0\n{settings}\n'
            f'[broker]\nport = {self._port}\n[data]\ndataset = "digits"\n[data.partition]\ndevices = 8\nindex = 0\n'
        )
        return path

    def start(
        self,
        name: str,
        *arguments: str,
        command: tuple[str, ...] = (SPARSYEDGE,),
        environment: dict[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
            )
        self._running.append(process)
        return process

    def lead(self, manager: ServiceManager) -> subprocess.Popen[bytes]:
        """Start the coordinator as its unit does: with a service manager, and no memory to write and execute."""
        words = ("coordinator", "run", "--service", str(self.folder / "run.toml"))
        return self.start(
            "coordinator",
            *words,
            command=(sys.executable, "-c", CONFINED),
            environment={"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "2000000"},
        )

    def device(self, name: str, *options: str, crash_at: str | None = None) -> subprocess.Popen[bytes]:
        environment = {CRASH_VARIABLE: crash_at} if crash_at else {}
        config = str(self.folder / f"{name}.toml")
        return self.start(name, "edge", "--config", config, *options, environment=environment)

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def model(self, device: str, kind: str = "model") -> Path:
        return self.folder / "work" / "default" / device / kind / "current"

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        until_s = time.monotonic() + LIMIT_S
        while not condition():
            if time.monotonic() > until_s:
                logs = {path.name: path.read_text()[-2000:] for path in self.folder.glob("*.log")}
                pytest.fail(f"{what} did not happen within {LIMIT_S:g} s: {json.dumps(logs, indent=1)}")
            time.sleep(0.05)

    def end(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.kill()
            process.wait(LIMIT_S)


@pytest.fixture
def fleet(tmp_path: Path, digits_artifacts: Artifacts, mosquitto: int) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, digits_artifacts.directory, mosquitto)
    try:
        yield fleet
    finally:
        fleet.end()


def test_devices_have_the_coordinators_model_to_the_byte_also_if_they_come_when_it_is_gone(fleet: Fleet) -> None:
    hook = f"env >> {fleet.folder / 'hook'}; echo told"
    fleet.add("trainer", f'model = "every"\npersonalised = true\non_model = ["sh", "-c", "{hook}"]')
    told_path = fleet.folder / "told"
    config = fleet.add("latecomer", f'on_model = ["sh", "-c", "echo told >> {told_path}"]')
    manager = ServiceManager(fleet.folder / "notify")
    coordinator = fleet.lead(manager)
    trainer = fleet.device("trainer", "--until-finished")
    assert coordinator.wait(LIMIT_S) == 0, fleet.log("coordinator")
    assert trainer.wait(LIMIT_S) == 0, fleet.log("trainer")
    assert manager.heard() == {b"READY=1", b"WATCHDOG=1"}
    # At the next boot there is nothing left to do.
    assert fleet.lead(manager).wait(LIMIT_S) == 0
    assert manager.heard() == {b"READY=1"}
    manager.close()

    delivered = fleet.folder / "run" / "model.onnx"
    assert sha256_file(fleet.model("trainer") / "model.onnx") == sha256_file(delivered)
    note = json.loads((fleet.model("trainer") / "model.json").read_text())
    store = Store.open(fleet.folder / "run")
    record = store.rounds()[-1]
    store.close()
    assert (note["run"], note["round"], note["model_id"]) == ("digits", ROUNDS, record.model_id)
    assert (note["accuracy"], note["sha256"]) == (record.test_accuracy, sha256_file(delivered))
    assert note["input"]["shape"] == [3, 32, 32]
    assert len(note["names"]) == 10
    assert note["predict_ms"] > 0

    # Every round's model was announced once, the last one last.
    told = [line.split("=")[1] for line in (fleet.folder / "hook").read_text().splitlines() if "_MODEL_ID=" in line]
    assert len(told) == len(set(told)) == ROUNDS
    assert told[-1] == record.model_id
    own = json.loads((fleet.model("trainer", "personal") / "model.json").read_text())
    assert (own["kind"], own["round"], own["accuracy"]) == ("personal", ROUNDS, None)

    # Nobody leads the fleet any more; the broker still has what the latecomer needs. It dies on both sides of the swap.
    for point, has_model in (("before-swap", False), ("after-swap", True)):
        killed = fleet.device("latecomer", crash_at=point)
        assert killed.wait(LIMIT_S) == EXIT_CODE, fleet.log("latecomer")
        assert fleet.model("latecomer").exists() == has_model
    # Or in the middle of a write.
    (fleet.model("latecomer").parent / ".left.part").mkdir()
    latecomer = fleet.device("latecomer", "--until-finished")
    assert latecomer.wait(LIMIT_S) == 0, fleet.log("latecomer")
    assert sha256_file(fleet.model("latecomer") / "model.onnx") == sha256_file(delivered)
    assert told_path.read_text().split() == ["told"]
    folder = fleet.model("latecomer").parents[1]
    # It has fetched neither the files to train with nor the weights that the run began with.
    assert [path.name for path in (folder / "artifacts").rglob("*.onnx")] == ["skeleton.onnx"]

    test = load("digits", None).test
    np.savez(fleet.folder / "digits.npz", x_test=test.x.transpose(0, 2, 3, 1), y_test=test.y)
    answer = subprocess.run(
        [SPARSYEDGE, "edge", "predict", "--config", str(config), "--json", str(fleet.folder / "digits.npz")],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    document = json.loads(answer.stdout)
    assert document["model"]["sha256"] == sha256_file(delivered)
    assert document["right"] / document["labelled"] == pytest.approx(record.test_accuracy, abs=1.01 / 360)
