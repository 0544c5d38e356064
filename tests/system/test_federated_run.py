"""Whole runs: a real Mosquitto, a real coordinator process, real device processes, real data."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import numpy as np
import onnxruntime
import pytest
from fixtures.repository import REPOSITORY
from numpy.typing import NDArray
from PIL import Image

from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.data import load
from sparsyedge.edge.errors import RunError
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.phase_costs import Kind

pytestmark = pytest.mark.heavy

SPARSYEDGE = str(Path(sys.executable).parent / "sparsyedge")
LIMIT_S = 300.0
DEVICES = 3
ONE_SAMPLE = 1.01 / 360
"""Of the digits' test set: numpy and our op round theta differently, which may tip one that is on the brink."""


@pytest.fixture
def artifacts(digits_artifacts: Artifacts) -> Path:
    return digits_artifacts.directory


class Processes:
    """`sparsyedge` processes of one test, each with its output in a file; all are ended with it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        with (self.directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [SPARSYEDGE, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        self._running.append(process)
        return process

    def log(self, name: str) -> str:
        path = self.directory / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def end(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.kill()
            process.wait(LIMIT_S)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(tmp_path)
    try:
        yield processes
    finally:
        processes.end()


def wait_until(condition: Callable[[], bool], what: str, processes: Processes) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > until_s:
            logs = {path.name: path.read_text()[-2000:] for path in processes.directory.glob("*.log")}
            pytest.fail(f"{what} did not happen within {LIMIT_S:g} s: {json.dumps(logs, indent=1)}")
        time.sleep(0.05)


def write_configs(directory: Path, artifacts: Path, port: int, **run: object) -> Path:
    """device-0.toml, device-1.toml, ... and run.toml; returns the latter."""
    for index in range(DEVICES):
        (directory / f"device-{index}.toml").write_text(
            f'id = "device-{index}"\nwork_dir = "{directory / "work"}"\nthreads = 1\n[broker]\nport = {port}\n'
            f'[data]\ndataset = "digits"\n[data.partition]\ndevices = {DEVICES}\nindex = {index}\n'
        )
    values = {"rounds": 3, "cohort_size": DEVICES, "epochs": 1, "seed": 1, "deadline_s": LIMIT_S, **run}
    lines = [f"{key} = {value}" for key, value in values.items()]
    config = directory / "run.toml"
    config.write_text(
        "\n".join(
            [
                'name = "digits"',
                f'artifacts = "{artifacts}"',
                f'run_dir = "{directory / "run"}"',
                'dataset = "digits"',
                *lines,
                f"[learning_rate]\nstart = 0.2\nend = 0.05\n[broker]\nport = {port}\n",
            ]
        )
    )
    return config


def start_device(processes: Processes, index: int) -> subprocess.Popen[bytes]:
    config = processes.directory / f"device-{index}.toml"
    return processes.start(f"device-{index}", "edge", "--config", str(config), "--until-finished")


@contextmanager
def opened(run_dir: Path) -> Iterator[Store]:
    store = Store.open(run_dir)
    try:
        yield store
    finally:
        store.close()


def rounds_closed(run_dir: Path) -> int:
    try:
        with opened(run_dir) as store:
            return len(store.rounds())
    except RunError:
        return 0  # the run is only being set up


def devices_taken(run_dir: Path) -> set[str]:
    """The devices of which an update was accepted so far."""
    with opened(run_dir) as store:
        return {device.id for device in store.devices()}


@pytest.mark.mosquitto
def test_a_run_goes_on_without_a_device_that_is_killed_in_mid_round_and_takes_it_back(
    mosquitto: int, artifacts: Path, processes: Processes, tmp_path: Path
) -> None:
    config = write_configs(tmp_path, artifacts, mosquitto, rounds=900, min_updates=2, deadline_s=10.0)
    run_dir = tmp_path / "run"
    coordinator = processes.start("coordinator", "coordinator", "run", str(config))
    devices = [start_device(processes, index) for index in range(DEVICES)]

    wait_until(lambda: "round 1 of 900: taking part" in processes.log("device-2"), "training on device-2", processes)
    devices[2].send_signal(signal.SIGKILL)
    wait_until(lambda: rounds_closed(run_dir) >= 1, "the end of round 1", processes)
    start_device(processes, 2)
    wait_until(lambda: "device-2" in devices_taken(run_dir), "an update of device-2", processes)
    assert processes.start("stop", "coordinator", "stop", str(run_dir)).wait(LIMIT_S) == 0

    assert coordinator.wait(LIMIT_S) == 0, processes.log("coordinator")
    assert [devices[index].wait(LIMIT_S) for index in (0, 1)] == [0, 0]
    with opened(run_dir) as store:
        summary = store.summary()
    assert summary.run.state == "stopped"
    assert summary.rounds[0].updates == 2


def check_privacy(directory: Path) -> None:
    """What a run or a device has made is for its owner alone, whatever the user's umask."""
    paths = [directory, *directory.rglob("*")]
    assert len(paths) > 3
    modes = {str(path): stat.S_IMODE(path.stat().st_mode) for path in paths}
    wanted = {str(path): 0o700 if path.is_dir() else 0o600 for path in paths}
    assert modes == wanted


def check_costs(run_dir: Path) -> None:
    """Every device has seconds for each phase, and joules that say where they are from."""
    with opened(run_dir) as store:
        devices = store.devices()
    for device in devices:
        assert set(device.phases) == {"download", "train", "prune", "encode", "upload"}
        assert device.phases["train"].seconds > 0
        assert device.energy_kind in get_args(Kind)
        assert device.steps > 0
        assert device.peak_rss_mb > 10
        assert 0 < device.bytes_up < device.bytes_down


def check_model(path: Path, *, expected: float | None) -> None:
    """The delivered model runs in a plain session, without our op library, and is as good as the record says."""
    images, labels = digit_images()
    assert np.mean(seen_in(images, path) == labels) == pytest.approx(expected, abs=ONE_SAMPLE)


def digit_images() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The test set as image files hold it: (images, height, width, channels)."""
    test = load("digits", None).test
    return np.ascontiguousarray(test.x.transpose(0, 2, 3, 1), dtype=np.uint8), test.y.astype(np.int64)


def seen_in(images: NDArray[np.uint8], path: Path) -> NDArray[np.int64]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    _, probabilities = session.run(None, {"images": images})
    classes: NDArray[np.int64] = probabilities.argmax(axis=1)
    return classes


def check_predict(path: Path, processes: Processes, *, expected: float | None) -> None:
    """`sparsyedge predict` counts as many right as the coordinator did."""
    images, labels = digit_images()
    data = processes.directory / "digits.npz"
    np.savez(data, x_test=images, y_test=labels)
    assert processes.start("predict", "predict", str(path), str(data)).wait(LIMIT_S) == 0
    right, total = re.findall(r"\d+", processes.log("predict").splitlines()[-1])[:2]
    assert int(right) / int(total) == pytest.approx(expected, abs=ONE_SAMPLE)


def check_documented_script(run_dir: Path) -> None:
    """The script of docs/how-to/model.md is ten lines, needs only onnxruntime and Pillow and names the right class."""
    (script,) = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs/how-to/model.md").read_text(), re.DOTALL)
    lines = [line for line in script.splitlines() if line]
    assert len(lines) <= 10
    imported = {line.split()[1] for line in lines if line.startswith(("import", "from"))}
    assert imported == {"json", "numpy", "onnxruntime", "PIL"}
    images, _ = digit_images()
    Image.fromarray(images[7]).resize((64, 64), Image.Resampling.NEAREST).save(run_dir / "image.png")
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=run_dir, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    name, probability = done.stdout.rsplit(maxsplit=1)
    assert name == f"class {seen_in(images[7:8], run_dir / 'model.onnx')[0]}"
    assert 0 < float(probability) <= 1


@pytest.mark.mosquitto
def test_int8_steps_with_error_feedback_travel_through_a_real_broker(
    mosquitto: int, artifacts: Path, processes: Processes, tmp_path: Path
) -> None:
    config = write_configs(tmp_path, artifacts, mosquitto, rounds=4, codec='"int8"')
    run_dir = tmp_path / "run"
    coordinator = processes.start("coordinator", "coordinator", "run", str(config))
    devices = [start_device(processes, index) for index in range(DEVICES)]
    assert coordinator.wait(LIMIT_S) == 0, processes.log("coordinator")
    assert [device.wait(LIMIT_S) for device in devices] == [0] * DEVICES
    with opened(run_dir) as store:
        summary, refusals = store.summary(), store.refusals()
    # A frame names the hash of its base's entries: a device that held other bits than the coordinator would be refused.
    assert [record.updates for record in summary.rounds] == [DEVICES] * 4
    assert not refusals
    check_model(run_dir / "model.onnx", expected=summary.rounds[-1].test_accuracy)


@pytest.mark.mosquitto
def test_a_run_that_is_asked_to_stop_ends_after_its_round_and_keeps_its_model(
    mosquitto: int, artifacts: Path, processes: Processes, tmp_path: Path
) -> None:
    config = write_configs(tmp_path, artifacts, mosquitto, rounds=500)
    run_dir = tmp_path / "run"
    coordinator = processes.start("coordinator", "coordinator", "run", str(config))
    for index in range(DEVICES):
        start_device(processes, index)
    wait_until(lambda: rounds_closed(run_dir) >= 1, "the end of round 1", processes)
    assert processes.start("stop", "coordinator", "stop", str(run_dir)).wait(LIMIT_S) == 0
    assert coordinator.wait(LIMIT_S) == 0, processes.log("coordinator")
    assert processes.start("status", "coordinator", "status", str(run_dir), "--json").wait(LIMIT_S) == 0
    status = json.loads(processes.log("status"))
    assert status["run"]["state"] == "stopped"
    assert (run_dir / "model.onnx").exists()


def demo(run_dir: Path) -> dict[str, object]:
    command = [SPARSYEDGE, "demo", "--json", "--run-dir", str(run_dir)]
    command += ["--width", "4", "--rounds", "2", "--epochs", "1", "--devices", "2", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False, text=True)
    assert done.returncode == 0, done.stderr
    document: dict[str, object] = json.loads(done.stdout)
    return document


def test_two_demos_with_one_seed_end_in_the_same_model(tmp_path: Path) -> None:
    first, second = demo(tmp_path / "first"), demo(tmp_path / "second")
    assert first["model_sha256"] == second["model_sha256"]
    assert len(first["rounds"]) == 2  # type: ignore[arg-type]
    assert {device["id"] for device in first["devices"]} == {"device-0", "device-1"}  # type: ignore[attr-defined]
    for name in ("run.sqlite", "model.onnx", "model_float.onnx", "model.frame"):
        assert (tmp_path / "first" / name).exists(), name
    float_models = [(tmp_path / run / "model_float.onnx").read_bytes() for run in ("first", "second")]
    assert float_models[0] == float_models[1]
