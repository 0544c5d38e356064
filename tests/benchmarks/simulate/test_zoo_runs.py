"""Every kind of model trains for a few rounds and comes out as a plain graph: the zoo's, and a user's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
import torch
from fixtures.artifacts import ExportOnce
from fixtures.small_data import accelerometer, diabetes, few_digits, spectrograms, write_npz

from sparsyedge.benchmarks.simulate import simulate
from sparsyedge.benchmarks.simulate.config import ExportConfig, SimulatedRunConfig, SimulationConfig
from sparsyedge.benchmarks.simulate.missing_artifacts import ensure_artifacts
from sparsyedge.coordinator.config import LearningRateConfig
from sparsyedge.edge.data import load
from sparsyedge.edge.data.form import form_of
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.inference import Predictor
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.methods import MethodConfig, make_method
from sparsyedge.edge.model.training import TrainingConfig, training_of
from sparsyedge.export.model_spec import ModelSpec

pytestmark = pytest.mark.heavy

OWN = Path(__file__).parents[2] / "export" / "modules.py"
DEVICES = 2
SGD, ADAMW = TrainingConfig(), TrainingConfig(optimizer="adamw")


@dataclass(frozen=True)
class Case:
    """A model, its data, and a rate that suits both."""

    model: str
    width: int
    data: str
    rate: float
    training: TrainingConfig = SGD
    rounds: int = 3


CASES = [
    Case("mobilenet_v2", 4, "digits", 0.1),
    Case("vit_tiny", 4, "few_digits.npz", 0.003, ADAMW, rounds=2),
    Case("ds_cnn", 8, "spectrograms.npz", 0.1),
    Case("mlp", 16, "diabetes.npz", 0.05),
    Case("sensor_cnn", 4, "moves.npz", 0.1),
    Case(f"{OWN}:GruClassifier", 1, "moves.npz", 0.01, ADAMW),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small data set of every form."""
    folder = tmp_path_factory.mktemp("data")
    write_npz(spectrograms(640), folder / "spectrograms.npz")
    write_npz(diabetes(), folder / "diabetes.npz")
    write_npz(accelerometer(160), folder / "moves.npz")
    write_npz(few_digits(), folder / "few_digits.npz")
    return folder


def make_run(folder: Path, dataset: str, artifacts: Path, case: Case, export: ExportConfig) -> SimulatedRunConfig:
    return SimulatedRunConfig(
        name="zoo",
        artifacts=str(artifacts),
        run_dir=str(folder / "run"),
        dataset=dataset,
        rounds=case.rounds,
        cohort_size=DEVICES,
        epochs=1,
        method=MethodConfig(name="sparsyfed", sparsity=0.5),
        training=case.training,
        learning_rate=LearningRateConfig(start=case.rate, end=case.rate / 2),
        simulation=SimulationConfig(devices=DEVICES, alpha=100.0, meter="none", runtime="stock", export=export),
    )


def export_for(case: Case, dataset: str, export_once: ExportOnce) -> Artifacts:
    """Not compared with torch: tests/export does that."""
    spec = ModelSpec.for_data(case.model, case.width, form_of(load(dataset, None)))
    return export_once(spec, make_method("sparsyfed", sparsity=0.5), 0, training_of(case.training))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.model.rpartition(":")[2])
def test_a_few_rounds_lower_the_loss_and_deliver_a_plain_graph(
    case: Case, data: Path, export_once: ExportOnce, tmp_path: Path
) -> None:
    dataset = str(data / case.data) if case.data.endswith(".npz") else case.data
    artifacts = export_for(case, dataset, export_once)
    export = ExportConfig(model=case.model, width=case.width)
    summary = simulate(make_run(tmp_path, dataset, artifacts.directory, case, export), workers=1)
    losses = [record.test_loss for record in summary.rounds]
    assert [record.updates for record in summary.rounds] == [DEVICES] * case.rounds
    assert losses[-1] < losses[0], losses  # type: ignore[operator]
    graph = onnx.load(tmp_path / "run" / "model.onnx")
    assert {domain.domain for domain in graph.opset_import} <= {"", "ai.onnx", "ai.onnx.ml"}


def test_a_users_module_is_exported_trained_and_predicts(data: Path, tmp_path: Path) -> None:
    dataset = str(data / "moves.npz")
    case = Case(f"{OWN}:SignalNet", 64, "moves.npz", 0.1, rounds=2)
    export = ExportConfig(model=case.model, arguments={"hidden": 6}, train="last:2", prunable="*.weight", seed=4)
    config = make_run(tmp_path, dataset, tmp_path / "artifacts", case, export)
    summary = simulate(config, workers=1)
    manifest = Artifacts.load(tmp_path / "artifacts").manifest
    assert manifest.model == "modules.py:SignalNet"
    assert {p.name: (p.shape, p.trainable, p.prunable) for p in manifest.parameters} == {
        "conv.weight": ((6, 3, 5), False, False),
        "conv.bias": ((6,), False, False),
        "mix.weight": ((6, 6, 1), True, True),
        "mix.bias": ((6,), True, False),
        "head.weight": ((4, 6), True, True),
        "head.bias": ((4,), True, False),
    }
    assert [record.updates for record in summary.rounds] == [DEVICES] * 2
    with np.load(dataset) as stored:
        probabilities = Predictor(tmp_path / "run" / "model.onnx").probabilities(stored["x_test"])
    assert probabilities.shape == (40, 4)
    assert np.allclose(probabilities.sum(axis=1), 1, atol=1e-5)

    again = make_run(tmp_path / "again", dataset, tmp_path / "artifacts", case, ExportConfig(model="sensor_cnn"))
    with pytest.raises(ConfigError, match=r"`simulation\.export\.model` has value 'sensor_cnn', .*'modules\.py:Sig"):
        simulate(again, workers=1)


def test_artifacts_of_other_choices_are_refused(data: Path, tmp_path: Path) -> None:
    weights = tmp_path / "weights.pt"
    shapes = {"conv": (6, 3, 5), "mix": (6, 6, 1), "head": (4, 6)}
    state = {f"{name}.weight": torch.randn(shape) for name, shape in shapes.items()}
    state |= {f"{name}.bias": torch.zeros(shape[0]) for name, shape in shapes.items()}
    torch.save(state, weights)
    case = Case(f"{OWN}:SignalNet", 64, "moves.npz", 0.1, rounds=1)
    made = ExportConfig(
        model=case.model, arguments={"hidden": 6}, init=str(weights), train="last:2", prunable="*.weight"
    )

    def run(**changes: object) -> None:
        export = msgspec.structs.replace(made, **changes)
        config = make_run(tmp_path, str(data / case.data), tmp_path / "artifacts", case, export)
        ensure_artifacts(config, load(config.dataset, None))

    run()
    run()
    refused: list[tuple[dict[str, object], str]] = [
        (
            {"arguments": {"hidden": 8}},
            r"`simulation.export.arguments` has value \{'hidden': 8\}, .* made with others;",
        ),
        ({"arguments": {}}, r"`simulation.export.arguments` has value \{\}, .* made with others;"),
        ({"init": None}, "`simulation.export.init` has value None.* were made with other weights;"),
        ({"train": "all"}, "`simulation.export.train` has value 'all'.* were made with 'last:2'; name another folder"),
        ({"prunable": None}, "`simulation.export.prunable` has value None.* were made with '\\*.weight';"),
        ({"init": str(tmp_path / "gone.pt")}, "gone.pt, which cannot be read .*; put it back, or leave out"),
    ]
    for changes, sentence in refused:
        with pytest.raises(ConfigError, match=sentence):
            run(**changes)
    torch.save({name: tensor + 1 for name, tensor in state.items()}, weights)
    with pytest.raises(ConfigError, match=r"`simulation\.export\.init` has value .* were made with other weights;"):
        run()
