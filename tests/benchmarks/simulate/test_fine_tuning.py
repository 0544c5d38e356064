"""A model of which only the last layer trains goes the whole way; the rest of it never travels and never changes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from sparsyedge.benchmarks.simulate import simulate
from sparsyedge.benchmarks.simulate.config import SimulatedRunConfig, SimulationConfig
from sparsyedge.coordinator.aggregation_config import AggregationConfig, RuleName
from sparsyedge.coordinator.config import LearningRateConfig
from sparsyedge.coordinator.model.model_files import ModelFiles
from sparsyedge.edge.data import DATASETS
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.checkpoint import read_initial_state
from sparsyedge.edge.model.methods import make_method
from sparsyedge.edge.wire.codecs import Codec
from sparsyedge.edge.wire.frame import decode_frame
from sparsyedge.export.build import build_artifacts
from sparsyedge.export.model_spec import ModelChoices, ModelSpec

pytestmark = pytest.mark.heavy

DEVICES = 2
ROUNDS = 3
HEAD = {"head.weight", "head.bias"}


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    spec = ModelSpec.for_data("mlp", 64, DATASETS["digits"].form)
    method = make_method("sparsyfed", sparsity=0.8, beta=1.25)
    folder = tmp_path_factory.mktemp("fine-tuning") / "artifacts"
    choices = ModelChoices(train="last:1")
    return build_artifacts(spec, method, folder, seed=1, check=lambda *made: None, choices=choices)[0]


def config(artifacts: Artifacts, folder: Path, *, codec: Codec) -> SimulatedRunConfig:
    return SimulatedRunConfig(
        name="tune",
        artifacts=str(artifacts.directory),
        run_dir=str(folder / "run"),
        dataset="digits",
        rounds=ROUNDS,
        cohort_size=DEVICES,
        codec=codec,
        learning_rate=LearningRateConfig(start=0.1, end=0.05),
        simulation=SimulationConfig(devices=DEVICES, alpha=1.0, meter="none"),
    )


def test_the_manifest_names_what_no_step_changes(artifacts: Artifacts) -> None:
    manifest = artifacts.manifest
    assert set(manifest.frozen) == set(manifest.shapes) - HEAD
    assert manifest.prunable == ("head.weight",)


# One that needs a base for weights, which round 1 lacks, and one without loss.
@pytest.mark.parametrize(("codec", "rule"), [("int8", "mean"), ("lossless", "trimmed")])
def test_what_is_frozen_stays_bit_for_bit_and_never_travels(
    artifacts: Artifacts, tmp_path: Path, codec: Codec, rule: RuleName
) -> None:
    run = config(artifacts, tmp_path, codec=codec)
    summary = simulate(msgspec.structs.replace(run, aggregation=AggregationConfig(rule=rule)), workers=1)
    assert not summary.refusals
    initial, manifest = read_initial_state(artifacts), artifacts.manifest
    for number in range(2, ROUNDS + 2):
        state = decode_frame(ModelFiles(tmp_path / "run").load(number).frame, manifest.shapes).state
        assert all(np.array_equal(state[name], initial[name]) for name in manifest.frozen)
        assert not np.array_equal(state["head.weight"], initial["head.weight"])
    # A frame of all that trains takes up to 4 bytes per value; the rest would take 33 kB more.
    trained = sum(4 * initial[name].size for name in HEAD)
    allowed = DEVICES * (trained + 1000)
    assert [(each.round, each.bytes_up < allowed, each.bytes_down < allowed) for each in summary.rounds] == [
        (number, True, True) for number in range(1, ROUNDS + 1)
    ]
