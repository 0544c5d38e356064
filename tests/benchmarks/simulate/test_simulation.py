"""Whole simulated runs: real coordinator, real agents, real training on digits, over both links."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import pytest
from fixtures.training_api import NEEDS_TRAINING_API
from numpy.typing import NDArray

from sparsyedge.benchmarks.simulate import simulate
from sparsyedge.benchmarks.simulate.command import main
from sparsyedge.benchmarks.simulate.config import ExportConfig, SimulatedRunConfig, SimulationConfig
from sparsyedge.benchmarks.simulate.hub import HeldClock
from sparsyedge.benchmarks.simulate.pipe import matches
from sparsyedge.benchmarks.simulate.shares import device_names
from sparsyedge.coordinator.aggregation_config import ServerOptimizerConfig
from sparsyedge.coordinator.config import LearningRateConfig
from sparsyedge.coordinator.model.initial_model import read_given_model
from sparsyedge.coordinator.record.observer import SilentObserver
from sparsyedge.coordinator.record.records import RoundRecord
from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.errors import ConfigError, RunError
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.checkpoint import read_initial_state
from sparsyedge.edge.model.methods import MethodConfig
from sparsyedge.edge.model.training import TrainingConfig
from sparsyedge.edge.tensors import model_id
from sparsyedge.edge.training.session import Runtime

DEVICES = 40
MakeConfig = Callable[..., SimulatedRunConfig]


@pytest.fixture
def make_config(digits_artifacts: Artifacts, tmp_path: Path) -> MakeConfig:
    def make(folder: str = "run", *, devices: int = DEVICES, **changes: object) -> SimulatedRunConfig:
        config = SimulatedRunConfig(
            name="sim",
            artifacts=str(digits_artifacts.directory),
            run_dir=str(tmp_path / folder),
            dataset="digits",
            rounds=2,
            cohort_size=3,
            learning_rate=LearningRateConfig(start=0.1, end=0.05),
            simulation=SimulationConfig(devices=devices, alpha=0.5, meter="none"),
        )
        return msgspec.structs.replace(config, **changes)

    return make


def test_links_and_numbers_of_workers_end_in_the_same_model(make_config: MakeConfig, mosquitto: int) -> None:
    alone = simulate(make_config("one"), workers=1)
    several = simulate(make_config("three"), workers=3)
    over_mqtt = simulate(make_config("mqtt"), link="mqtt", workers=2)
    ids = [[record.model_id for record in summary.rounds] for summary in (alone, several, over_mqtt)]
    assert len(set(ids[0])) == 2
    assert ids[0] == ids[1] == ids[2]
    # Not only the models agree but what travelled, and who trained.
    traffic = [[(r.bytes_down, r.bytes_up, r.updates) for r in summary.rounds] for summary in (alone, over_mqtt)]
    assert traffic[0] == traffic[1]
    assert {device.id for device in alone.devices} == {device.id for device in over_mqtt.devices}


def test_another_seed_ends_in_another_model(make_config: MakeConfig) -> None:
    models = {simulate(make_config(f"seed{seed}", seed=seed, rounds=1)).run.model_id for seed in (1, 2)}
    assert len(models) == 2


class Cohorts(SilentObserver):
    """Remembers who takes part."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, ...]] = []

    def round_opened(self, *, round_number: int, rounds: int, cohort: tuple[str, ...], learning_rate: float) -> None:
        self.seen.append(cohort)


def test_a_seed_for_sampling_decides_cohorts_and_nothing_else(make_config: MakeConfig) -> None:
    def run(folder: str, *, seed: int, sampling_seed: int | None) -> tuple[tuple[str, ...], str]:
        simulation = SimulationConfig(devices=DEVICES, alpha=0.5, meter="none", sampling_seed=sampling_seed)
        observer = Cohorts()
        config = make_config(folder, seed=seed, rounds=1, simulation=simulation)
        model = simulate(config, workers=1, observer=observer).run.model_id
        return observer.seen[0], model

    plain = run("plain", seed=2, sampling_seed=None)
    other = run("other", seed=1, sampling_seed=2)
    # The same devices, but they shuffle their batches otherwise.
    assert other[0] == plain[0]
    assert other[1] != plain[1]


def test_a_seed_for_sampling_is_refused_where_all_devices_take_part(make_config: MakeConfig) -> None:
    simulation = SimulationConfig(devices=3, meter="none", sampling_seed=5)
    with pytest.raises(ConfigError, match=r"`simulation\.sampling_seed` has value 5: .*nothing to sample; lower"):
        simulate(make_config(cohort_size=3, simulation=simulation))


@NEEDS_TRAINING_API
def test_devices_without_the_training_api_end_in_nearly_the_same_model(make_config: MakeConfig) -> None:
    by_api = simulate(make_config("training", rounds=1))
    stock = SimulationConfig(devices=DEVICES, alpha=0.5, meter="none", runtime="stock")
    by_ops = simulate(make_config("stock", rounds=1, simulation=stock))
    # Sums are taken in another order, so bits tell the two apart; what was learned does not.
    assert by_api.run.model_id != by_ops.run.model_id
    losses = [summary.rounds[0].test_loss for summary in (by_api, by_ops)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)


def test_weights_that_grow_back_on_stock_devices_are_counted(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(
        artifacts=str(tmp_path / "topk"),
        method=MethodConfig(name="topk", sparsity=0.9),
        simulation=SimulationConfig(devices=DEVICES, meter="none", runtime="stock", export=ExportConfig(width=4)),
    )
    simulate(config)
    with closing(Store.open(config.run_path)) as store:
        regrown = {number: figures.get("regrown_devices", 0.0) for number, figures in store.metrics().items()}
    # Round 1 starts from dense weights, which have nothing to bring back.
    assert regrown[1] == 0
    assert regrown[2] > 0


@pytest.mark.parametrize("name", ["zerofl", "spectral"])
def test_methods_of_steps_of_their_own_train_on_stock_devices(
    name: str, make_config: MakeConfig, tmp_path: Path
) -> None:
    config = make_config(
        artifacts=str(tmp_path / name),
        method=MethodConfig(name=name),
        simulation=SimulationConfig(devices=DEVICES, meter="none", runtime="stock", export=ExportConfig(width=4)),
    )
    assert len(simulate(config).rounds) == config.rounds


def test_optimizers_keep_their_memory_on_each_device_and_only_if_the_run_says_so(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    def run(folder: str, *, state: Literal["fresh", "keep"], workers: int = 1) -> list[str]:
        # Two devices, both in every cohort: each has a memory from the second round on.
        config = make_config(
            folder,
            artifacts=str(tmp_path / f"artifacts-{state}"),
            cohort_size=2,
            rounds=2,
            learning_rate=LearningRateConfig(start=0.002, end=0.001),
            training=TrainingConfig(optimizer="adamw", state=state, clip_norm=1.0, crop=2, label_smoothing=0.1),
            simulation=SimulationConfig(devices=2, meter="none", export=ExportConfig(width=4)),
        )
        return [str(record.model_id) for record in simulate(config, workers=workers).rounds]

    kept, fresh = run("keep", state="keep"), run("fresh", state="fresh")
    assert kept[0] == fresh[0]
    assert kept[1] != fresh[1]
    assert run("two workers", state="keep", workers=2) == kept
    memories = list((tmp_path / "keep").rglob("*.optimizer"))
    assert len(memories) == 4  # before and after the last round, on two devices


def test_training_that_contradicts_the_artifacts_is_refused_with_the_key(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match=r"key `training.optimizer` is 'momentum' .* were exported for 'sgd'"):
        simulate(make_config(training=TrainingConfig(optimizer="momentum")))
    with pytest.raises(ConfigError, match=r"key `training.flip` is True in the run file, .* were exported for False"):
        simulate(make_config(training=TrainingConfig(flip=True)))


def test_round_closes_without_the_devices_that_dropped_out(make_config: MakeConfig) -> None:
    dropped: list[str] = []

    def drop_first(round_number: int, device: str) -> bool:
        if round_number == 2 and not dropped:
            dropped.append(device)
        return round_number == 2 and device in dropped

    summary = simulate(make_config(min_updates=2, deadline_s=3600.0), drop=drop_first)
    assert [record.updates for record in summary.rounds] == [3, 2]
    # The deadline was waited for in the run's own time, not in ours.
    assert summary.rounds[1].seconds >= 3600


def test_run_fails_with_a_sentence_when_too_few_devices_answer(make_config: MakeConfig) -> None:
    with pytest.raises(RunError, match="has 0 of 3 updates that it needs"):
        simulate(make_config(), drop=lambda round_number, device: True)


DIES_IN_ROUND_2 = """
import os, pathlib, signal, sys
import msgspec
from sparsyedge.benchmarks.simulate import simulate
from sparsyedge.benchmarks.simulate.config import SimulatedRunConfig
from sparsyedge.coordinator.record.observer import SilentObserver
from sparsyedge.coordinator.record.records import RoundRecord

class Dies(SilentObserver):
    def update_accepted(self, *, round_number, **rest):
        if round_number == 2:
            os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    simulate(msgspec.json.decode(pathlib.Path(sys.argv[1]).read_bytes(), type=SimulatedRunConfig), observer=Dies())
"""


def test_run_that_was_killed_goes_on_to_the_same_model(make_config: MakeConfig, tmp_path: Path) -> None:
    undisturbed = simulate(make_config("undisturbed", rounds=3))
    config = make_config("killed", rounds=3)
    config_file, program = tmp_path / "config.json", tmp_path / "dies.py"
    config_file.write_bytes(msgspec.json.encode(config))
    program.write_text(DIES_IN_ROUND_2)
    killed = subprocess.run([sys.executable, str(program), str(config_file)], timeout=240)
    assert killed.returncode == -signal.SIGKILL
    with closing(Store.open(config.run_path)) as store:
        assert [record.round for record in store.rounds()] == [1]
    summary = simulate(config)
    assert [record.model_id for record in summary.rounds] == [record.model_id for record in undisturbed.rounds]
    # Once more is no harm: a finished run is only read.
    assert simulate(config).run.model_id == summary.run.model_id


LEAVES_A_WORKER_BEHIND = """
import multiprocessing, os, signal, sys, time
from sparsyedge.benchmarks.simulate import worker

def busy(connection):
    worker.play_turns = lambda connection, setup: (connection.send(os.getpid()), time.sleep(3600))
    worker.work(connection, None)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    context.Process(target=busy, args=(theirs,), daemon=True).start()
    print(ours.recv(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux's /proc")
def test_worker_ends_in_the_middle_of_a_turn_when_the_simulation_is_killed(tmp_path: Path) -> None:
    # Else it would write the device's files while the resumed run plays the same device.
    program = tmp_path / "leaves.py"
    program.write_text(LEAVES_A_WORKER_BEHIND)
    # Not to the end of its output: the worker has that open, too.
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        worker = int(killed.stdout.readline())
    assert killed.returncode == -signal.SIGKILL
    until_s = time.monotonic() + 60
    while is_alive(worker) and time.monotonic() < until_s:
        time.sleep(0.01)
    if alive := is_alive(worker):
        os.kill(worker, signal.SIGKILL)
    assert not alive


def is_alive(process: int) -> bool:
    """Whether a process runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class SlowsDown(SilentObserver):
    """A clock by which this machine becomes a thousand times slower after round 1."""

    def __init__(self) -> None:
        self.speed = 1.0
        self._now_s = self._read_s = time.monotonic()

    def round_opened(self, *, round_number: int, rounds: int, cohort: tuple[str, ...], learning_rate: float) -> None:
        self.clock()
        self.speed = 1.0 if round_number == 1 else 1000.0

    def clock(self) -> float:
        read_s = time.monotonic()
        self._now_s += self.speed * (read_s - self._read_s)
        self._read_s = read_s
        return self._now_s


def test_run_on_a_machine_that_becomes_slow_has_the_same_cohorts_and_the_same_model(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Few enough devices that a cohort has some that answered within seconds before, and one that never did.
    config = make_config("quick", devices=4, rounds=3)
    quick = simulate(config, workers=1)
    slow = SlowsDown()
    monkeypatch.setattr("sparsyedge.benchmarks.simulate.simulation.HeldClock", lambda: HeldClock(slow.clock))
    summary = simulate(msgspec.structs.replace(config, run_dir=f"{config.run_dir}-slow"), workers=1, observer=slow)
    assert [record.model_id for record in summary.rounds] == [record.model_id for record in quick.rounds]


FLAT = LearningRateConfig(start=0.1, end=0.1)


@pytest.mark.parametrize(
    "changes",
    [{}, {"codec": "int8"}, {"server_optimizer": ServerOptimizerConfig(name="fedadam")}],
    ids=["plain", "residuals", "optimizer"],
)
def test_run_of_one_rate_that_goes_on_after_its_end_is_the_longer_run(
    changes: dict[str, object], make_config: MakeConfig
) -> None:
    whole = simulate(make_config("whole", rounds=4, learning_rate=FLAT, **changes), workers=1)
    config = make_config("longer", rounds=2, learning_rate=FLAT, **changes)
    assert simulate(config, workers=1).run.state == "finished"
    config = msgspec.structs.replace(config, rounds=4)
    # What benchmarks compare must have been one run from its first round on.
    with pytest.raises(RunError, match="was begun with `rounds` = 2, the config now says 4"):
        simulate(config, workers=1)
    longer = simulate(config, workers=1, longer=True)
    assert [record.model_id for record in longer.rounds] == [record.model_id for record in whole.rounds]
    assert [record.bytes_down for record in longer.rounds] == [record.bytes_down for record in whole.rounds]


DIES_WHEN_IT_GOES_ON = DIES_IN_ROUND_2.replace(
    "def update_accepted(self, *, round_number, **rest):\n        if round_number == 2:",
    "def waiting(self, situation):\n        if situation.round == 3:",
).replace("observer=Dies()", "observer=Dies(), longer=True")


def test_run_that_was_killed_before_the_round_after_its_end_is_still_the_longer_run(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    whole = simulate(make_config("whole", rounds=3, learning_rate=FLAT), workers=1)
    config = make_config("longer", rounds=2, learning_rate=FLAT)
    simulate(config, workers=1)
    config = msgspec.structs.replace(config, rounds=3)
    config_file, program = tmp_path / "config.json", tmp_path / "dies.py"
    config_file.write_bytes(msgspec.json.encode(config))
    program.write_text(DIES_WHEN_IT_GOES_ON)
    killed = subprocess.run([sys.executable, str(program), str(config_file)], timeout=240)
    assert killed.returncode == -signal.SIGKILL
    summary = simulate(config, workers=1)
    assert summary.run.model_id == whole.run.model_id


def test_run_begins_from_the_model_of_another(make_config: MakeConfig) -> None:
    first = simulate(make_config("first"), workers=1)
    config = make_config("second", name="second", rounds=1, initial=str(make_config("first").run_path))
    second = simulate(config, workers=1)
    assert second.run.began_from == f"run sim in {config.initial}, round 2"
    with closing(Store.open(config.run_path)) as store:
        figures = store.metrics()[1]
        assert store.progress().base_model_id == first.run.model_id
    # The first round moves the model that it was given, which is sparse already; nothing grows back.
    assert figures["l2_global"] == figures["l2_round"]
    assert figures["nestedness"] == 1.0
    assert second.rounds[0].bytes_down < first.rounds[1].bytes_down * 1.1


@pytest.mark.parametrize("runtime", [pytest.param("training", marks=NEEDS_TRAINING_API), "stock"])
def test_run_begins_from_weights_of_torch(runtime: Runtime, make_config: MakeConfig, tmp_path: Path) -> None:
    digits = make_config().artifacts_path
    theta = read_initial_state(Artifacts.load(digits))
    np.savez(tmp_path / "torch.npz", allow_pickle=False, **theta)
    simulation = SimulationConfig(devices=4, meter="none", runtime=runtime)
    config = make_config("given", rounds=1, initial=str(tmp_path / "torch.npz"), simulation=simulation)
    summary = simulate(config, workers=1)
    given = read_given_model(tmp_path / "torch.npz", Artifacts.load(digits))
    with closing(Store.open(config.run_path)) as store:
        assert store.progress().base_model_id == model_id(given.state)
    # All weights travelled, to each of three devices.
    assert summary.rounds[0].bytes_down > 3 * 0.8 * summary.run.dense_bytes
    assert summary.rounds[0].updates == 3


DIES_IN_ROUND_1 = DIES_IN_ROUND_2.replace("if round_number == 2:", "if round_number == 1:")


def test_run_that_was_killed_in_round_1_goes_on_from_the_model_that_it_was_given(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    source = make_config("first", rounds=1)
    simulate(source, workers=1)
    undisturbed = simulate(make_config("undisturbed", initial=source.run_dir), workers=1)
    config = make_config("killed", initial=source.run_dir)
    config_file, program = tmp_path / "config.json", tmp_path / "dies.py"
    config_file.write_bytes(msgspec.json.encode(config))
    program.write_text(DIES_IN_ROUND_1)
    killed = subprocess.run([sys.executable, str(program), str(config_file)], timeout=240)
    assert killed.returncode == -signal.SIGKILL
    # The run that it began from has gone on meanwhile, and has another model now.
    simulate(msgspec.structs.replace(source, rounds=2), workers=1, longer=True)
    summary = simulate(config, workers=1)
    assert [record.model_id for record in summary.rounds] == [record.model_id for record in undisturbed.rounds]


def test_run_does_not_go_on_with_other_data(make_config: MakeConfig, tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (90, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(90) % 10

    def write(count: int) -> None:
        x, y = images[:count], labels[:count]
        np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=images[:20], y_test=labels[:20])

    config = make_config(devices=4, dataset=str(tmp_path / "own.npz"), rounds=2)
    write(90)

    class Stops(SilentObserver):
        def round_closed(self, record: RoundRecord) -> None:
            raise RunError("stopped here")

    with pytest.raises(RunError, match="stopped here"):
        simulate(config, workers=1, observer=Stops())
    write(80)
    with pytest.raises(RunError, match=r"begun with other data: .* had 90 \+ 20 samples, .* has 80 \+ 20 samples"):
        simulate(config, workers=1)
    write(90)
    assert len(simulate(config, workers=1).rounds) == 2


def test_classes_go_by_name_however_the_data_numbers_them(
    make_config: MakeConfig, digits_artifacts: Artifacts, tmp_path: Path
) -> None:
    names = tuple("abcdefghij")
    named = Artifacts(tmp_path / "named", msgspec.structs.replace(digits_artifacts.manifest, class_names=names))
    shutil.copytree(digits_artifacts.directory, named.directory)
    named.save_manifest()
    x = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
    y = np.arange(40) % 10

    def run(folder: str, labels: NDArray[np.int64], names: Sequence[str]) -> tuple[str | None, float | None]:
        path = tmp_path / f"{folder}.npz"
        np.savez(path, x_train=x, y_train=labels, x_test=x, y_test=labels, names=names)
        config = make_config(folder, devices=2, cohort_size=2, rounds=1, dataset=str(path))
        summary = simulate(msgspec.structs.replace(config, artifacts=str(named.directory)), workers=1)
        return summary.run.model_id, summary.rounds[0].test_loss

    assert run("one", y, names) == run("other", 9 - y, names[::-1])


def children_of(process: int) -> dict[int, bytes]:
    """Command lines by process id."""
    path = Path(f"/proc/{process}/task/{process}/children")
    return {int(child): Path(f"/proc/{child}/cmdline").read_bytes() for child in path.read_text().split()}


class KillsWorkers(SilentObserver):
    """Kills a worker as soon as there is a round to work on."""

    def round_opened(self, *, round_number: int, rounds: int, cohort: tuple[str, ...], learning_rate: float) -> None:
        for child, command in children_of(os.getpid()).items():
            if b"spawn_main" in command:
                os.kill(child, signal.SIGKILL)


@pytest.mark.skipif(not Path(f"/proc/self/task/{os.getpid()}/children").exists(), reason="needs Linux's /proc")
def test_death_of_a_worker_ends_the_run_with_a_sentence(make_config: MakeConfig) -> None:
    with pytest.raises(RunError, match="a worker process ended with exit code -9"):
        simulate(make_config(), workers=1, observer=KillsWorkers())


def test_run_without_simulated_devices_is_refused(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match=r"add a table \[simulation\]"):
        simulate(make_config(simulation=None))


def test_cohort_larger_than_the_fleet_is_refused(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match=r"`cohort_size` has value 3: there are `simulation.devices` = 2"):
        simulate(make_config(devices=2))


def test_more_devices_than_samples_are_refused(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match=r"key `simulation\.devices` has value 50000: .* allowed are 1 to 1437"):
        simulate(make_config(devices=50_000))


def test_artifacts_of_another_export_are_refused(make_config: MakeConfig) -> None:
    simulation = SimulationConfig(devices=DEVICES, export=ExportConfig(width=8))
    with pytest.raises(ConfigError, match=r"`simulation.export.width` has value 8, the artifacts in .* with 4"):
        simulate(make_config(simulation=simulation))


@pytest.fixture
def run_file(digits_artifacts: Artifacts, tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(
        f'name = "sim"\nartifacts = "{digits_artifacts.directory}"\nrun_dir = "unused"\ndataset = "digits"\n'
        f"rounds = 1\ncohort_size = 2\n[simulation]\ndevices = {DEVICES}\nalpha = 0.5\n"
    )
    return path


@pytest.mark.skipif(not Path(f"/proc/self/task/{os.getpid()}/children").exists(), reason="needs Linux's /proc")
def test_sigterm_ends_a_run_with_its_broker_and_its_devices(run_file: Path, tmp_path: Path, mosquitto: int) -> None:
    program = "import sys; from sparsyedge.edge.cli import main; sys.exit(main())"
    arguments = ["simulate", str(run_file), "--link", "mqtt", "--out", str(tmp_path / "out")]
    run = subprocess.Popen([sys.executable, "-c", program, *arguments], stderr=subprocess.PIPE)
    try:
        started: dict[int, bytes] = {}
        until_s = time.monotonic() + 120
        while not any(b"spawn_main" in command for command in started.values()) and time.monotonic() < until_s:
            started |= children_of(run.pid)
            time.sleep(0.01)
        run.terminate()
        _, errors = run.communicate(timeout=300)
    finally:
        run.kill()
        run.wait()
    # The interpreter's own tracker of resources ends by itself, a moment after its parent.
    ours = {child: command for child, command in started.items() if b"resource_tracker" not in command}
    left = {child: command for child, command in ours.items() if Path(f"/proc/{child}").exists()}
    for child in left:
        os.kill(child, signal.SIGKILL)
    assert left == {}
    assert run.returncode == -signal.SIGTERM
    assert errors == b""
    assert any(b"mosquitto" in command for command in ours.values())


def test_command_reads_the_run_file_and_prints_the_rounds(
    run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main([str(run_file), "--out", str(out), "--workers", "1"]) == 0
    assert "1/1: acc" in capsys.readouterr().out
    assert (out / "model.onnx").is_file()


def test_held_clock_stops_before_the_deadline_until_it_may_pass() -> None:
    seconds = itertools.count(100.0)
    clock = HeldClock(lambda: next(seconds))
    clock.hold(1.0)
    stopped_s = clock()
    assert 100 < stopped_s < 101
    assert clock() == stopped_s
    clock.pass_deadline()
    passed_s = clock()
    assert passed_s >= 101
    clock.release()
    assert clock() >= passed_s


@pytest.mark.parametrize(
    ("pattern", "topic", "expected"),
    [("a/+/c", "a/b/c", True), ("a/+/c", "a/b/d", False), ("a/+", "a/b/c", False), ("a/b", "a/b", True)],
)
def test_patterns_match_topics_as_a_broker_does(pattern: str, topic: str, expected: bool) -> None:
    assert matches(pattern, topic) is expected


def test_order_of_devices_by_name_is_their_order_by_number() -> None:
    names = device_names(1200)
    assert list(names) == sorted(names)
    assert names[7] == "device-0007"


def test_evaluation_on_devices_changes_no_bit_and_holding_out_samples_trains_on_fewer(make_config: MakeConfig) -> None:
    plain = simulate(make_config("plain", devices=4))
    assert plain.on_devices == {}
    assert not any("evaluate" in device.phases for device in plain.devices), "it costs nothing where it is off"
    silent = simulate(make_config("silent", devices=4, holdout=0.3, eval_devices_every=0))
    evaluating = simulate(make_config("evaluating", devices=4, holdout=0.3))
    assert evaluating.run.model_id == silent.run.model_id != plain.run.model_id
    assert silent.on_devices == {}
    assert set(evaluating.on_devices) == {1, 2}
    with closing(Store.open(Path(evaluating.run_dir))) as store:
        found = store.device_evaluations(round_number=2)
        trained = store.samples(2)
    with closing(Store.open(Path(plain.run_dir))) as store:
        whole = store.samples(2)
    assert {each.device for each in found} == set(trained)
    assert {each.device: each.samples + trained[each.device] for each in found} == whole
    assert all(each.held_out and each.own_loss is not None for each in found)
