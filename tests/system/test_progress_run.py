"""What a run waits for, as people see it: a real Mosquitto, a real coordinator, real devices that train."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fixtures.broker import Broker
from fixtures.scripted_fleet import retained_below

from sparsyedge.coordinator.record.live import DeviceActivity, LiveReader, Present
from sparsyedge.edge.model.artifacts import Artifacts

pytestmark = pytest.mark.heavy

SPARSYEDGE = str(Path(sys.executable).parent / "sparsyedge")
LIMIT_S = 300.0
NAMES = ("pi-0", "pi-1")


class Fleet:
    """A coordinator and two devices as processes, all ended with the test."""

    def __init__(self, folder: Path, artifacts: Path, port: int) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for index, name in enumerate(NAMES):
            (folder / f"{name}.toml").write_text(
                f'id = "{name}"\nwork_dir = "{folder / "work"}"\nthreads = 1\n[broker]\nport = {port}\n'
                f'[data]\ndataset = "digits"\n[data.partition]\ndevices = {len(NAMES)}\nindex = {index}\n'
            )
        (folder / "run.toml").write_text(
            f'name = "digits"\nartifacts = "{artifacts}"\nrun_dir = "{self.run_dir}"\ndataset = "digits"\n'
            f"rounds = 1\ncohort_size = {len(NAMES)}\nepochs = 5000\n"
            f"[learning_rate]\nstart = 0.0001\nend = 0.0001\n[broker]\nport = {port}\n"
        )

    def start(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [SPARSYEDGE, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
            )

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def stop(self, name: str, number: signal.Signals) -> None:
        self._processes[name].send_signal(number)
        self._processes[name].wait(LIMIT_S)

    def end(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait(LIMIT_S)

    def live(self) -> tuple[Present | None, dict[str, DeviceActivity]]:
        reader = LiveReader.open(self.run_dir)
        if reader is None:
            return None, {}
        with closing(reader):
            return reader.present(), reader.devices()

    def sentence(self) -> str:
        present = self.live()[0]
        return present.sentence if present is not None else ""

    def show(self, *arguments: str) -> str:
        return subprocess.run(
            [SPARSYEDGE, "coordinator", *arguments, str(self.run_dir)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "COLUMNS": "200"},
        ).stdout

    def until(self, condition: Callable[[], bool], what: str) -> None:
        until_s = time.monotonic() + LIMIT_S
        while not condition():
            if time.monotonic() > until_s:
                logs = {path.name: path.read_text()[-2000:] for path in self.folder.glob("*.log")}
                pytest.fail(f"{what} within {LIMIT_S:g} s; logs: {json.dumps(logs, indent=1)}")
            time.sleep(0.1)


@pytest.fixture
def fleet(tmp_path: Path, digits_artifacts: Artifacts, mosquitto: int) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, digits_artifacts.directory, mosquitto)
    try:
        yield fleet
    finally:
        fleet.end()


@pytest.mark.mosquitto
def test_everybody_sees_the_steps_of_each_device_and_who_is_gone(fleet: Fleet, broker: Broker) -> None:
    fleet.start("coordinator", "coordinator", "run", str(fleet.folder / "run.toml"))
    fleet.until(lambda: "round 1 waits for 2 more devices: 0 of 2 are ready" in fleet.sentence(), "nobody is there")
    for name in NAMES:
        fleet.start(name, "edge", "--config", str(fleet.folder / f"{name}.toml"))

    def steps() -> dict[str, int]:
        return {name: activity.step for name, activity in fleet.live()[1].items() if activity.phase == "train"}

    fleet.until(lambda: steps().keys() == set(NAMES), "both devices say that they train")
    before = steps()
    fleet.until(lambda: all(steps().get(name, 0) > before[name] for name in NAMES), "the steps of both grow")
    present, devices = fleet.live()
    assert present is not None
    assert (present.stage, present.cohort, present.accepted, present.online) == ("open", 2, 0, 2)
    assert present.cpu_s > 0
    assert present.rss_bytes > 10_000_000
    assert all(activity.loss is not None and activity.steps > activity.step for activity in devices.values())
    step = r"\(training, step \d+ of \d+, about \d+ (s|min|h)\)"
    wanted = rf"round 1 waits for 2 of 2 devices: pi-0 {step}, pi-1 {step}; it needs 2 more by \d\d:\d\d"
    fleet.until(lambda: re.search(wanted, fleet.sentence()) is not None, "the sentence names both")
    assert re.search(wanted, " ".join(fleet.show("status").split()))
    assert json.loads(fleet.show("status", "--json"))["present"]["cohort"] == 2
    assert len(re.findall(r"training, step \d+ of \d+, loss [\d.]+", fleet.show("devices"))) == 2
    assert json.loads(fleet.show("devices", "--json"))["devices"][0]["activity"]["phase"] == "train"

    fleet.stop("pi-1", signal.SIGKILL)
    gone = r"pi-1 \(offline for \d+ s; not waited for after \d\d:\d\d\)"
    fleet.until(lambda: re.search(gone, fleet.sentence()) is not None, "the dead device is offline")
    assert "pi-1" not in fleet.live()[1], "it does nothing any more"
    fleet.until(lambda: re.search(gone, fleet.log("coordinator")) is not None, "the log says so")

    fleet.stop("pi-0", signal.SIGTERM)
    topics = retained_below(broker.port, "se/v1/default/dev/pi-0/#")
    assert topics == ["se/v1/default/dev/pi-0/status"], "a device that leaves takes its progress along"

    broker.stop()
    gone = rf"the coordinator waits for the broker at \S+:{broker.port}, gone for \d+ s; round 1 waits for 2 of 2"
    fleet.until(lambda: re.match(gone, fleet.sentence()) is not None, "the broker is what it waits for")
