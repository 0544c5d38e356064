"""Simulated devices on declared boards: what they report, and cohorts that are chosen by it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from sparsyedge.benchmarks.simulate import simulate
from sparsyedge.benchmarks.simulate.boards import BoardConfig, boards_of
from sparsyedge.benchmarks.simulate.config import SimulatedRunConfig, SimulationConfig, load_simulated_run
from sparsyedge.coordinator.config import LearningRateConfig
from sparsyedge.coordinator.record.store import Store
from sparsyedge.coordinator.rounds.cohort import Policy
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.artifacts import Artifacts

BOARDS = {
    "pi-3": BoardConfig(step_s=4.0, step_j=8.0),
    "pi-4": BoardConfig(step_s=1.0, step_j=3.0),
    "pi-5": BoardConfig(share=2, step_s=0.5, step_j=1.5),
}
DEVICES = 12
MakeConfig = Callable[..., SimulatedRunConfig]


@pytest.fixture
def make_config(digits_artifacts: Artifacts, tmp_path: Path) -> MakeConfig:
    def make(folder: str, selection: Policy, boards: dict[str, BoardConfig] = BOARDS) -> SimulatedRunConfig:
        return SimulatedRunConfig(
            name="sim",
            artifacts=str(digits_artifacts.directory),
            run_dir=str(tmp_path / folder),
            dataset="digits",
            rounds=4,
            cohort_size=3,
            learning_rate=LearningRateConfig(start=0.1, end=0.05),
            selection=selection,
            simulation=SimulationConfig(devices=DEVICES, meter="none", boards=boards),
        )

    return make


def test_boards_are_dealt_out_in_their_shares() -> None:
    devices = [f"device-{number:03d}" for number in range(100)]
    dealt = boards_of(devices, BOARDS, seed=1)
    assert Counter(dealt.values()) == {"pi-3": 25, "pi-4": 25, "pi-5": 50}
    assert dealt == boards_of(devices[::-1], BOARDS, seed=1)
    assert dealt != boards_of(devices, BOARDS, seed=2)
    assert not boards_of(devices, {}, seed=1)


def test_a_run_file_declares_boards(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        'name = "r1"\nartifacts = "a"\nrun_dir = "r"\ndataset = "digits"\nrounds = 1\ncohort_size = 1\n'
        'selection = "energy"\n[simulation]\ndevices = 4\n'
        "[simulation.boards.pi-3]\nstep_s = 4.0\nstep_j = 8.0\n[simulation.boards.pi-5]\nshare = 3\nstep_s = 0.5\n"
    )
    config = load_simulated_run(path)
    assert config.simulation is not None
    assert config.simulation.boards == {"pi-3": BOARDS["pi-3"], "pi-5": BoardConfig(share=3, step_s=0.5)}


@pytest.mark.parametrize(
    ("selection", "boards", "missing"),
    [
        ("fast", {}, "step_s"),
        ("energy", {}, "step_j"),
        ("energy", {"pi-3": BoardConfig(step_s=1.0)}, "step_j"),
    ],
)
def test_a_simulation_does_not_choose_by_what_this_machine_takes(
    selection: Policy, boards: dict[str, BoardConfig], missing: str, make_config: MakeConfig
) -> None:
    with pytest.raises(ConfigError, match=rf'`selection` has value "{selection}": .*declare boards with `{missing}`'):
        simulate(make_config("refused", selection, boards))


def test_records_have_the_tables_costs_and_say_that_they_are_modelled(make_config: MakeConfig) -> None:
    config = make_config("costs", "energy")
    summary = simulate(config, workers=1)
    boards = boards_of([f"device-{number:03d}" for number in range(DEVICES)], BOARDS, seed=1337)
    for device in summary.devices:
        board = BOARDS[boards[device.id]]
        assert set(device.phases) == {"train"}
        assert device.phases["train"].seconds == pytest.approx(device.steps * board.step_s)
        assert device.phases["train"].joules == pytest.approx(device.steps * (board.step_j or 0.0))
        assert (device.energy_kind, device.energy_source) == ("modelled", f"table: {boards[device.id]}")


DIES = """
import os, pathlib, signal, sys
import msgspec
from sparsyedge.benchmarks.simulate import simulate
from sparsyedge.benchmarks.simulate.config import SimulatedRunConfig
from sparsyedge.coordinator.record.observer import SilentObserver

class Dies(SilentObserver):
    def round_closed(self, record):
        if record.round == 2:
            os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    config = msgspec.json.decode(pathlib.Path(sys.argv[1]).read_bytes(), type=SimulatedRunConfig)
    simulate(config, workers=1, observer=Dies())
"""


@pytest.mark.parametrize("selection", ["energy", "fast", "data"])
def test_a_coordinator_killed_before_it_chooses_chooses_the_same_devices(
    selection: Policy, make_config: MakeConfig, tmp_path: Path
) -> None:
    undisturbed = make_config("undisturbed", selection)
    model = simulate(undisturbed, workers=1).run.model_id
    config, program = make_config("killed", selection), tmp_path / "dies.py"
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(config))
    program.write_text(DIES)
    killed = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "config.json")], timeout=600, env=dict(os.environ)
    )
    assert killed.returncode == -signal.SIGKILL
    assert simulate(config, workers=2).run.model_id == model
    assert cohorts_of(config) == cohorts_of(undisturbed)


def cohorts_of(config: SimulatedRunConfig) -> dict[int, set[str]]:
    with closing(Store.open(config.run_path)) as store:
        return {number: set(store.accepted(number)) for number in range(1, config.rounds + 1)}


def test_a_broker_and_pipes_end_in_the_same_cohorts(make_config: MakeConfig, mosquitto: int) -> None:
    over_pipes, over_mqtt = make_config("memory", "data"), make_config("mqtt", "data")
    models = [simulate(over_pipes, workers=2).run.model_id, simulate(over_mqtt, link="mqtt", workers=2).run.model_id]
    assert models[0] == models[1]
    assert cohorts_of(over_pipes) == cohorts_of(over_mqtt)
