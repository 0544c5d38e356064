"""`make test-arm`: an emulated device with Debian and our wheel trains as this machine does, and joins a fleet."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.checkpoint import read_initial_state
from sparsyedge.edge.model.methods import make_method
from sparsyedge.edge.model.prune import prune_global
from sparsyedge.export.build import build_artifacts
from sparsyedge.export.model_spec import ModelSpec
from sparsyedge.hardware.arm.tree import SITE, emulated

RESNET, MOBILENET, VIT = (
    ModelSpec(model, width=4, classes=4, input_shape=(3, 16, 16)) for model in ("resnet18", "mobilenet_v2", "vit_tiny")
)
# How many steps of each model: one dense, the others at this sparsity. A MobileNetV2 of this size is dead at 90 %.
STEPS = {RESNET: (5, 0.9), MOBILENET: (2, 0.5), VIT: (2, 0.9)}
# A change this small next to the largest of its step is what is left of terms that cancel: the biases of a BatchNorm
# whose output another one normalises have no gradient.
SMALL = 1e-2
TOLERANCE = 1e-3
LIMIT_S = 1500.0
SPARSYEDGE = str(Path(sys.executable).parent / "sparsyedge")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def tree() -> Path:
    named = os.environ.get("SPARSYEDGE_ARM_TREE")
    if not named or not (Path(named) / SITE.removeprefix("/")).is_dir():
        pytest.skip("SPARSYEDGE_ARM_TREE names no Debian tree with sparsyedge in it; run `make test-arm`")
    return Path(named).resolve()


@pytest.fixture
def exchange(tree: Path) -> Iterator[Path]:
    """A folder that both sides see: what is /exchange in the tree."""
    folder = tree / "exchange"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def export(directory: Path, spec: ModelSpec = RESNET) -> Artifacts:
    method = make_method("sparsyfed", sparsity=0.9)
    return build_artifacts(spec, method, directory, seed=0, check=lambda *made: None)[0]


def python(tree: Path, *arguments: str) -> list[str]:
    return emulated(tree, "-E", f"PYTHONPATH={SITE}", "-E", "OMP_NUM_THREADS=1", "/usr/bin/python3", *arguments)


def environment() -> dict[str, str]:
    return {**os.environ, "QEMU_CPU": os.environ.get("QEMU_CPU", "cortex-a72")}


def draw_states(artifacts: Artifacts, steps: int, sparsity: float) -> dict[str, Any]:
    """Dense weights first, then pruned ones, each with a batch of its own."""
    rng = np.random.default_rng(5)
    start = read_initial_state(artifacts)
    arrays: dict[str, Any] = {}
    for step in range(steps):
        state = prune_global(start, artifacts.manifest.prunable, sparsity) if step else start
        arrays |= {f"{step}/{name}": value for name, value in state.items()}
        arrays[f"{step}/x"] = rng.standard_normal((5, 3, 16, 16), dtype=np.float32)
        arrays[f"{step}/y"] = rng.integers(0, 4, 5)
    return arrays


@pytest.mark.parametrize("spec", STEPS, ids=lambda spec: spec.model)
def test_steps_are_those_of_this_machine(spec: ModelSpec, tree: Path, exchange: Path) -> None:
    artifacts = export(exchange / "artifacts", spec)
    states = draw_states(artifacts, *STEPS[spec])
    np.savez(exchange / "states.npz", **states)
    shutil.copy(Path(__file__).with_name("arm_steps.py"), exchange)
    here = [sys.executable, str(exchange / "arm_steps.py"), str(exchange / "artifacts")]
    subprocess.run([*here, str(exchange / "states.npz"), str(exchange / "here.npz")], check=True, timeout=LIMIT_S)
    start_s = time.monotonic()
    there = python(tree, "/exchange/arm_steps.py", "/exchange/artifacts", "/exchange/states.npz", "/exchange/there.npz")
    subprocess.run(there, check=True, timeout=LIMIT_S, env=environment())
    print(f"\n{STEPS[spec][0]} emulated steps of {spec.model} with imports: {time.monotonic() - start_s:.0f} s")
    with np.load(exchange / "here.npz") as wanted, np.load(exchange / "there.npz") as found:
        assert set(wanted) == set(found)
        changes = {key: float(np.linalg.norm(wanted[key] - states.get(key, np.float32(0)))) for key in wanted}
        worst = 0.0
        for key, change in changes.items():
            largest = max(changes[other] for other in changes if other.split("/")[0] == key.split("/")[0])
            apart = float(np.linalg.norm(found[key] - wanted[key]))
            worst = max(worst, apart / max(change, SMALL * largest))
        print(f"worst difference of a loss or of a tensor's change: {worst:.1e} relative L2")
        assert worst <= TOLERANCE


def write_squares(path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 255, (32, 16, 16, 3)).astype(np.uint8), np.arange(32) % 4
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)


@pytest.mark.mosquitto
def test_emulated_device_completes_a_round_with_a_native_coordinator(
    tree: Path, exchange: Path, mosquitto: int, tmp_path: Path
) -> None:
    artifacts = export(tmp_path / "artifacts")
    write_squares(exchange / "squares.npz")
    (exchange / "device.toml").write_text(
        f'id = "pi-4"\nmeter = "none"\nwork_dir = "/exchange/work"\n[broker]\nport = {mosquitto}\n'
        f'[data]\ndataset = "/exchange/squares.npz"\n'
    )
    run_toml = tmp_path / "run.toml"
    run_toml.write_text(
        f'name = "arm"\nartifacts = "{artifacts.directory}"\nrun_dir = "{tmp_path / "run"}"\n'
        f'dataset = "{exchange / "squares.npz"}"\nrounds = 2\ncohort_size = 1\nepochs = 1\ndeadline_s = {LIMIT_S}\n'
        f"[broker]\nport = {mosquitto}\n"
    )
    start_s = time.monotonic()
    coordinator = subprocess.Popen([SPARSYEDGE, "coordinator", "run", str(run_toml)])
    arguments = ("edge", "--config", "/exchange/device.toml", "--until-finished")
    with (tmp_path / "device.log").open("wb") as log:
        command = python(tree, f"{SITE}/bin/sparsyedge", *arguments)
        device = subprocess.Popen(command, env=environment(), stdout=log, stderr=subprocess.STDOUT)
    try:
        assert coordinator.wait(LIMIT_S) == 0, (tmp_path / "device.log").read_text()
        assert device.wait(LIMIT_S) == 0, (tmp_path / "device.log").read_text()
    finally:
        for process in (coordinator, device):
            process.kill()
            process.wait()
    print(f"\ntwo rounds: {time.monotonic() - start_s:.0f} s\n{(tmp_path / 'device.log').read_text()}")
    store = Store.open(tmp_path / "run")
    try:
        summary = store.summary()
    finally:
        store.close()
    assert summary.run.state == "finished"
    assert [closed.updates for closed in summary.rounds] == [1, 1]
