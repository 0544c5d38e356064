"""What memory a real device process takes: while it waits, and in a dense and a sparse round of a full-size model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.artifacts import ExportOnce

from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.model.methods import make_method
from sparsyedge.export.model_spec import ModelSpec

LIMIT_S = 1800.0
ROUNDS = 2
MIB = 1 << 20
IDLE_MIB = 64.0
"""What a board of 512 MB can spare all the time; measured: 59."""
PEAK_MIB = 330.0
"""What it can spare for a round; measured: 290 to 295. With a second copy of weights and plans it was 500 and more."""


def write_data(path: Path) -> None:
    rng = np.random.default_rng(0)
    parts = {"train": 32, "test": 16}
    arrays: dict[str, Any] = {
        f"x_{part}": rng.integers(0, 256, (size, 32, 32, 3)).astype(np.uint8) for part, size in parts.items()
    }
    arrays |= {f"y_{part}": np.arange(size) % 10 for part, size in parts.items()}
    np.savez(path, **arrays)


def status_mib(pid: int, key: str) -> float:
    found = re.search(rf"{key}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024 / MIB


def await_true(condition: Callable[[], bool], log: Path, process: subprocess.Popen[bytes]) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not condition():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until_s, log.read_text()
        time.sleep(0.05)


@contextmanager
def device(folder: Path, data: Path, port: int) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A device that trains in the plain graph, as ARM boards do."""
    (folder / "device.toml").write_text(
        f'id = "board"\nwork_dir = "{folder / "work"}"\nmeter = "none"\n[broker]\nport = {port}\n'
        f'[data]\ndataset = "{data}"\n'
    )
    log = folder / "device.log"
    command = [sys.executable, "-m", "sparsyedge.edge", "--config", str(folder / "device.toml"), "--runtime", "stock"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=folder)
    try:
        yield process, log
    finally:
        process.kill()
        process.wait()


def run_rounds(folder: Path, artifacts: Path, data: Path, port: int) -> None:
    (folder / "run.toml").write_text(
        f'name = "memory"\nartifacts = "{artifacts}"\nrun_dir = "{folder / "run"}"\ndataset = "{data}"\n'
        f"rounds = {ROUNDS}\ncohort_size = 1\nepochs = 1\nbatch_size = 16\ndeadline_s = {LIMIT_S}\n"
        f"[broker]\nport = {port}\n"
    )
    program = "import sys; from sparsyedge.edge.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "coordinator", "run", str(folder / "run.toml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.heavy
@pytest.mark.mosquitto
def test_device_that_waits_for_a_run_takes_little_memory(mosquitto: int, tmp_path: Path) -> None:
    data = tmp_path / "images.npz"
    write_data(data)
    with device(tmp_path, data, mosquitto) as (process, log):
        await_true(lambda: "joined fleet" in log.read_text(), log, process)
        assert status_mib(process.pid, "VmRSS") < IDLE_MIB


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.mosquitto
def test_dense_first_round_and_sparse_second_fit_into_a_small_board(
    mosquitto: int, export_once: ExportOnce, tmp_path: Path
) -> None:
    spec = ModelSpec("resnet18", width=64, classes=10, input_shape=(3, 32, 32))
    artifacts = export_once(spec, make_method("sparsyfed", sparsity=0.95), 0).directory
    data = tmp_path / "images.npz"
    write_data(data)
    with device(tmp_path, data, mosquitto) as (process, log):
        run_rounds(tmp_path, artifacts, data, mosquitto)
        peak = status_mib(process.pid, "VmHWM")
        text = log.read_text()
    store = Store.open(tmp_path / "run")
    try:
        assert [closed.updates for closed in store.summary().rounds] == [1] * ROUNDS
    finally:
        store.close()
    assert "round 1: 100.0 % of the work is left" in text
    assert peak < PEAK_MIB, text
