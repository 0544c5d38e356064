"""A regression goes the whole way: data, training, evaluation, record, report, delivered model."""

from __future__ import annotations

import csv
import io
import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from fixtures.linear_regression import make_artifacts
from fixtures.small_data import diabetes, write_npz

from sparsyedge.benchmarks.report.command import main as report
from sparsyedge.benchmarks.simulate import simulate
from sparsyedge.benchmarks.simulate.config import SimulatedRunConfig, SimulationConfig
from sparsyedge.coordinator.config import LearningRateConfig
from sparsyedge.coordinator.record.metrics_csv import as_csv
from sparsyedge.coordinator.record.records import RunSummary
from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge import cli
from sparsyedge.edge.inference import Predictor, evaluate
from sparsyedge.edge.inference.losses import r_squared, rmse

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_npz(diabetes(), tmp_path_factory.mktemp("data") / "diabetes.npz")


@pytest.fixture(scope="module")
def summary(data: Path, tmp_path_factory: pytest.TempPathFactory) -> RunSummary:
    """A run of four devices; every second round is evaluated."""
    folder = tmp_path_factory.mktemp("regression")
    artifacts = make_artifacts(folder / "artifacts", features=10, names=("progression",))
    config = SimulatedRunConfig(
        name="diabetes",
        artifacts=str(artifacts.directory),
        run_dir=str(folder / "run"),
        dataset=str(data),
        rounds=6,
        cohort_size=4,
        eval_every=2,
        learning_rate=LearningRateConfig(start=0.1, end=0.02),
        simulation=SimulationConfig(devices=4, alpha=0.1, meter="none", runtime="stock"),
    )
    return simulate(config, workers=1)


def test_training_explains_what_a_linear_model_can(summary: RunSummary) -> None:
    last = summary.rounds[-1]
    assert last.test_r_squared is not None
    assert last.test_rmse is not None
    assert last.test_loss is not None
    # Least squares on all ten features explains 0.4 to 0.5 of it.
    assert last.test_r_squared > 0.35
    assert last.test_rmse == pytest.approx(last.test_loss**0.5)
    assert last.global_sparsity == 0.5


def test_no_round_has_an_accuracy_and_only_evaluated_ones_have_errors(summary: RunSummary) -> None:
    assert [record.test_accuracy for record in summary.rounds] == [None] * 6
    assert [record.test_rmse is not None for record in summary.rounds] == [False, True] * 3
    assert summary.rounds[0].quality == "not evaluated"
    assert summary.rounds[-1].quality.startswith("RMSE 0.")


def test_every_device_has_the_same_number_of_samples_whatever_alpha_is(summary: RunSummary) -> None:
    with closing(Store.open(Path(summary.run_dir))) as store:
        assert sorted(store.samples(1).values()) == [88, 88, 88, 89]


def test_the_figures_of_every_round_are_in_the_table(summary: RunSummary) -> None:
    with closing(Store.open(Path(summary.run_dir))) as store:
        rows = list(csv.DictReader(io.StringIO(as_csv(store))))
    assert rows[-1]["test_accuracy"] == ""
    assert float(rows[-1]["test_rmse"]) == summary.rounds[-1].test_rmse
    assert float(rows[-1]["test_r_squared"]) == summary.rounds[-1].test_r_squared
    assert rows[0]["test_rmse"] == ""
    assert not [name for name in rows[0] if name.startswith("accuracy")]


def test_the_delivered_model_does_as_well_as_the_record_says(summary: RunSummary, data: Path) -> None:
    model, last = Path(summary.run_dir) / "model.onnx", summary.rounds[-1]
    score = evaluate(model, str(data))
    assert (score.samples, score.accuracy, score.by_class) == (89, None, {})
    assert score.rmse == pytest.approx(last.test_rmse, rel=1e-5)
    assert score.r_squared == pytest.approx(last.test_r_squared, rel=1e-5)
    with np.load(data) as stored:
        values = Predictor(model).values(stored["x_test"])
        assert rmse(values, stored["y_test"]) == pytest.approx(score.rmse)
        assert r_squared(values, stored["y_test"]) == pytest.approx(score.r_squared)


def test_predict_prints_values_and_their_error(
    summary: RunSummary, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, last = Path(summary.run_dir) / "model.onnx", summary.rounds[-1]
    assert cli.main(["predict", str(model), str(data)]) == 0
    title, first, *_, error = capsys.readouterr().out.splitlines()
    assert title == f"{model}: run diabetes, round 6, RMSE {last.test_rmse:.4g}, R2 {last.test_r_squared:.4g}"
    assert first.startswith(f"{data}[0]: progression ")
    assert " (is " in first
    assert error == f"error: RMSE {last.test_rmse:.4g}, R2 {last.test_r_squared:.4g} over 89 samples"
    assert cli.main(["predict", "--json", str(model), str(data)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["rmse"] == pytest.approx(last.test_rmse, rel=1e-5)
    assert document["predictions"][0]["values"][0]["name"] == "progression"
    assert "accuracy" not in document["model"]


def test_status_and_report_show_errors_and_no_accuracy(
    summary: RunSummary, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = summary.run_dir
    assert cli.main(["coordinator", "status", run]) == 0
    status = capsys.readouterr().out
    assert "RMSE" in status
    assert "acc" not in status
    assert report([run, "--out", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    assert (tmp_path / "error.png").is_file()
    assert not (tmp_path / "accuracy.png").exists()
    assert "<th>RMSE</th><th>R2</th>" in page
    assert "<th>accuracy</th>" not in page
