"""MobileNetV2 and ViT-tiny over a real Mosquitto: a device trains as its installation does, another in any runtime."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import onnx
import pytest
from fixtures.artifacts import ExportOnce
from fixtures.small_data import few_digits, write_npz

from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.data import load
from sparsyedge.edge.data.form import form_of
from sparsyedge.edge.inference import evaluate
from sparsyedge.edge.model.methods import make_method
from sparsyedge.export.model_spec import ModelSpec

pytestmark = [pytest.mark.heavy, pytest.mark.mosquitto]

SPARSYEDGE = str(Path(sys.executable).parent / "sparsyedge")
LIMIT_S = 300.0
ROUNDS = 2
OPTIONS: tuple[tuple[str, ...], ...] = ((), ("--runtime", "stock"))
"""Of each device."""
ONE_SAMPLE = 1.01 / 120
"""Of the test set: numpy and our op round theta differently, which may tip one that is on the brink."""


def write_configs(folder: Path, data: Path, artifacts: Path, port: int) -> None:
    for index in range(len(OPTIONS)):
        (folder / f"device-{index}.toml").write_text(
            f'id = "device-{index}"\nwork_dir = "{folder / "work"}"\nthreads = 1\nmeter = "none"\n'
            f'[broker]\nport = {port}\n[data]\ndataset = "{data}"\n'
            f"[data.partition]\ndevices = {len(OPTIONS)}\nindex = {index}\nalpha = 100.0\n"
        )
    (folder / "run.toml").write_text(
        f'name = "any"\nartifacts = "{artifacts}"\nrun_dir = "{folder / "run"}"\ndataset = "{data}"\n'
        f"rounds = {ROUNDS}\ncohort_size = {len(OPTIONS)}\nepochs = 1\nseed = 1\ndeadline_s = {LIMIT_S}\n"
        f"[learning_rate]\nstart = 0.05\nend = 0.02\n[broker]\nport = {port}\n"
    )


def start(folder: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    with (folder / f"{name}.log").open("wb") as log:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen([SPARSYEDGE, *arguments], stdout=log, stderr=subprocess.STDOUT, env=environment)


def run_fleet(folder: Path) -> None:
    """Run coordinator and devices to their end."""
    started = {"coordinator": start(folder, "coordinator", "coordinator", "run", str(folder / "run.toml"))}
    for index, options in enumerate(OPTIONS):
        config = str(folder / f"device-{index}.toml")
        started[f"device-{index}"] = start(
            folder, f"device-{index}", "edge", "--config", config, "--until-finished", *options
        )
    try:
        for name, process in started.items():
            assert process.wait(LIMIT_S) == 0, (folder / f"{name}.log").read_text()
    finally:
        for process in started.values():
            process.kill()
            process.wait()


@pytest.mark.parametrize("model", ["mobilenet_v2", "vit_tiny"])
def test_both_devices_take_part_in_every_round_and_the_model_is_as_good_as_recorded(
    model: str, mosquitto: int, export_once: ExportOnce, tmp_path: Path
) -> None:
    data = write_npz(few_digits(), tmp_path / "digits.npz")
    spec = ModelSpec.for_data(model, 4, form_of(load(str(data), None)))
    artifacts = export_once(spec, make_method("sparsyfed", sparsity=0.5), 0)
    write_configs(tmp_path, data, artifacts.directory, mosquitto)
    run_fleet(tmp_path)
    with closing(Store.open(tmp_path / "run")) as store:
        summary, refusals = store.summary(), store.refusals()
    assert summary.run.state == "finished"
    assert [record.updates for record in summary.rounds] == [len(OPTIONS)] * ROUNDS
    assert not refusals
    delivered = tmp_path / "run" / "model.onnx"
    assert {node.domain for node in onnx.load(delivered).graph.node} <= {"", "ai.onnx"}
    assert evaluate(delivered, str(data)).accuracy == pytest.approx(summary.rounds[-1].test_accuracy, abs=ONE_SAMPLE)
