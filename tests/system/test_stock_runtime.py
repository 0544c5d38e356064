"""A whole federated run where there is nothing but the stock onnxruntime: no onnxruntime-training, torch or onnx."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.artifacts import ExportOnce
from fixtures.repository import REPOSITORY

from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.model.methods import make_method
from sparsyedge.edge.native import codec_path, library_path
from sparsyedge.export.model_spec import ModelSpec

pytestmark = pytest.mark.heavy

FOLDERS = ("edge", "coordinator", "hardware")
LIMIT_S = 300.0
ROUNDS = 2
FORBIDDEN = ("torch", "onnxruntime.training")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as a wheel would lay it out."""
    site = tmp_path_factory.mktemp("site")
    for folder in FOLDERS:
        shutil.copytree(REPOSITORY / folder, site / "sparsyedge" / folder, ignore=shutil.ignore_patterns("*.so"))
    for library in (library_path(), codec_path()):
        shutil.copy(library, site / "sparsyedge/edge/native")
    information = site / "sparsyedge-0.dist-info"
    information.mkdir()
    for name in ("METADATA", "entry_points.txt"):
        (information / name).write_text(metadata.distribution("sparsyedge").read_text(name) or "")
    return site


@pytest.fixture
def artifacts(export_once: ExportOnce) -> Path:
    spec = ModelSpec("resnet18", width=4, classes=4, input_shape=(3, 16, 16))
    return export_once(spec, make_method("sparsyfed", sparsity=0.9), 0).directory


def write_data(path: Path) -> None:
    """Squares of noise whose brightest quarter is the class."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for part, size in (("train", 96), ("test", 40)):
        y = rng.integers(0, 4, size)
        x = rng.integers(0, 120, (size, 16, 16, 3))
        for image, label in zip(x, y, strict=True):
            image[8 * (label // 2) : 8 * (label // 2) + 8, 8 * (label % 2) : 8 * (label % 2) + 8] += 100
        arrays |= {f"x_{part}": x.astype(np.uint8), f"y_{part}": y}
    np.savez(path, **arrays)


def write_configs(folder: Path, artifacts: Path, port: int) -> None:
    data = folder / "squares.npz"
    write_data(data)
    (folder / "device.toml").write_text(
        f'id = "pi-0"\nwork_dir = "{folder / "work"}"\n[broker]\nport = {port}\n[data]\ndataset = "{data}"\n'
    )
    (folder / "run.toml").write_text(
        f'name = "stock"\nartifacts = "{artifacts}"\nrun_dir = "{folder / "run"}"\ndataset = "{data}"\n'
        f"rounds = {ROUNDS}\ncohort_size = 1\nepochs = 1\ndeadline_s = {LIMIT_S}\n[broker]\nport = {port}\n"
    )


def start(python: Path, site: Path, folder: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    with (folder / f"{name}.log").open("wb") as log:
        # The shared interpreter may hold onnx for other tests; neither a coordinator nor a device needs it.
        program = "import sys; sys.modules['onnx'] = None; from sparsyedge.edge.cli import main; sys.exit(main())"
        command = [str(python), "-c", program, *arguments]
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=folder)


def test_the_stock_interpreter_has_neither_torch_nor_a_training_api(stock_python: Path) -> None:
    check = f"import importlib.util as u; print([n for n in {FORBIDDEN} if u.find_spec(n)])"
    found = subprocess.run(
        [str(stock_python), "-c", check], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    assert found.stdout.strip() == "[]"


@pytest.mark.mosquitto
def test_whole_run_needs_nothing_but_the_stock_onnxruntime(
    mosquitto: int, stock_python: Path, site: Path, artifacts: Path, tmp_path: Path
) -> None:
    write_configs(tmp_path, artifacts, mosquitto)
    coordinator = start(stock_python, site, tmp_path, "coordinator", "coordinator", "run", "run.toml")
    device = start(stock_python, site, tmp_path, "device", "edge", "--config", "device.toml", "--until-finished")
    try:
        assert coordinator.wait(LIMIT_S) == 0, (tmp_path / "coordinator.log").read_text()
        assert device.wait(LIMIT_S) == 0, (tmp_path / "device.log").read_text()
    finally:
        for process in (coordinator, device):
            process.kill()
            process.wait()
    log = (tmp_path / "device.log").read_text()
    assert "round 1: 100.0 % of the work is left; sparse graph" in log
    store = Store.open(tmp_path / "run")
    try:
        summary = store.summary()
    finally:
        store.close()
    assert summary.run.state == "finished"
    assert [closed.updates for closed in summary.rounds] == [1] * ROUNDS
    fetched = {path.name for path in (tmp_path / "work").glob("*/*/artifacts/*/*")}
    assert fetched == {"checkpoint", "sparse_plan.onnx", "sparse_step.onnx", "skeleton.onnx", "manifest.json"}
