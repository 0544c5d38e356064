"""A run in which a device's plug vanishes: its joules are on record as what they are, and another meter takes over."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from fixtures.calibrations import calibration
from fixtures.plugs import FakePlug, running_plug

from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.errors import RunError
from sparsyedge.edge.model.artifacts import Artifacts

pytestmark = pytest.mark.heavy

SPARSYEDGE = str(Path(sys.executable).parent / "sparsyedge")
LIMIT_S = 300.0
SWITCH = "/rpc/Switch.GetStatus?id=0"
ANSWER = {"id": 0, "output": True, "apower": 4.2, "voltage": 230.1, "current": 0.034, "aenergy": {"total": 12.5}}


@pytest.fixture
def plug() -> Iterator[FakePlug]:
    with running_plug() as running:
        running.answers[SWITCH] = ANSWER
        yield running


@pytest.fixture
def artifacts(digits_artifacts: Artifacts) -> Path:
    return digits_artifacts.directory


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a command; its output goes to a file."""
    running: list[subprocess.Popen[bytes]] = []

    def start_one(name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (tmp_path / f"{name}.log").open("wb") as log:
            running.append(subprocess.Popen([SPARSYEDGE, *arguments], stdout=log, stderr=subprocess.STDOUT))
        return running[-1]

    try:
        yield start_one
    finally:
        for process in running:
            process.kill()
            process.wait()


def write_configs(folder: Path, artifacts: Path, port: int, plug: FakePlug) -> None:
    (folder / "calibration.json").write_bytes(msgspec.json.encode(calibration()))
    (folder / "device.toml").write_text(
        f'id = "pi-03"\nwork_dir = "{folder / "work"}"\nthreads = 1\nidle_s = 0.2\nmeter = ["shelly", "cpu-model"]\n'
        f'[broker]\nport = {port}\n[data]\ndataset = "digits"\n[data.partition]\ndevices = 3\nindex = 0\n'
        f'[meters]\ncalibration = "calibration.json"\n[meters.plug]\naddress = "{plug.address}"\nfeeds = "pi-03"\n'
    )
    (folder / "run.toml").write_text(
        f'name = "metered"\nartifacts = "{artifacts}"\nrun_dir = "{folder / "run"}"\ndataset = "digits"\nrounds = 900\n'
        f"cohort_size = 1\nmin_updates = 1\nepochs = 1\nseed = 1\ndeadline_s = {LIMIT_S}\n"
        f"[learning_rate]\nstart = 0.2\nend = 0.05\n[broker]\nport = {port}\n"
    )


def kinds(run_dir: Path) -> set[str]:
    """How joules of this run are known so far."""
    try:
        with closing(Store.open(run_dir)) as store:
            return {cost.kind for cost in store.phase_records() if cost.joules is not None}
    except RunError:
        return set()  # the run is only being set up


def wait_until(condition: Callable[[], bool], folder: Path) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > until_s:
            pytest.fail("\n".join(path.read_text()[-3000:] for path in sorted(folder.glob("*.log"))))
        time.sleep(0.05)


@pytest.mark.mosquitto
def test_a_plug_that_vanishes_leaves_rounds_without_joules_and_then_the_calibrated_model_counts(
    mosquitto: int, artifacts: Path, tmp_path: Path, plug: FakePlug, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    write_configs(tmp_path, artifacts, mosquitto, plug)
    run_dir = tmp_path / "run"
    coordinator = start("coordinator", "coordinator", "run", str(tmp_path / "run.toml"))
    start("device", "edge", "--config", str(tmp_path / "device.toml"), "--until-finished")
    wait_until(lambda: "measured-board" in kinds(run_dir), tmp_path)
    plug.answers[SWITCH] = b"gone\r\n\r\n"
    wait_until(lambda: "calibrated" in kinds(run_dir), tmp_path)
    assert start("stop", "coordinator", "stop", str(run_dir)).wait(LIMIT_S) == 0
    assert coordinator.wait(LIMIT_S) == 0

    log = (tmp_path / "device.log").read_text()
    assert "energy meter: shelly (measured-board); then cpu-model from shelly" in log
    assert "shelly: no power reading, joules are missing from here on" in log
    assert "shelly has fallen silent; from this round on cpu-model from shelly (calibrated) counts" in log
    with closing(Store.open(run_dir)) as store:
        costs = store.phase_records()
        assert {cost.kind for cost in costs} == {"measured-board", "calibrated"}
        by_round = {cost.round: {each.kind for each in costs if each.round == cost.round} for cost in costs}
        assert all(len(found) == 1 for found in by_round.values())
        device = store.devices()[0]
        assert device.joules_kind == "calibrated"
    assert (device.energy_source, device.energy_kind, device.idle_w) == ("cpu-model from shelly", "calibrated", None)
