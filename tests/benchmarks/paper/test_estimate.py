"""Core-hours before a run: arithmetic on made-up costs, and one measurement."""

from __future__ import annotations

import json

import pytest

from sparsyedge.benchmarks.paper import command
from sparsyedge.benchmarks.paper.estimate import SIZES, Costs, core_hours
from sparsyedge.benchmarks.paper.experiments import EXPERIMENTS
from sparsyedge.benchmarks.paper.settings import SCALES


def test_a_run_costs_its_steps_and_its_evaluations() -> None:
    (row,) = [row for row in EXPERIMENTS["communication"].rows(True) if row.label == "sparsyfed 0.95"]
    (setting,) = row.settings(SCALES["full"], (1,), full=True)
    # 10 of 100 devices with 500 samples each take 32 steps a round, 700 rounds; every tenth is evaluated.
    assert core_hours(setting, Costs(0.0, 3.6, 0.0)) == pytest.approx(320 * 699 * 1e-3)
    assert core_hours(setting, Costs(3.6, 0.0, 0.0)) == pytest.approx(320 * 1e-3)
    assert core_hours(setting, Costs(0.0, 0.0, 3.6)) == pytest.approx(70 * 10_000 * 1e-3)


@pytest.mark.parametrize("scale", list(SCALES))
def test_the_size_of_every_data_set_is_known(scale: str) -> None:
    for experiment in EXPERIMENTS.values():
        assert {row.dataset for row in experiment.rows(scale == "full")} <= set(SIZES)


@pytest.mark.heavy
def test_command_times_a_row_and_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["communication", "--only", "sparsyfed", "--width", "2", "--seeds", "2", "--estimate", "--json"]
    assert command.main(words) == 0
    found = json.loads(capsys.readouterr().out)
    (row,) = found["rows"]
    assert row["label"] == "sparsyfed 0.95"
    assert (row["runs"], row["steps"]) == (2, 320 * 60)
    assert min(row["dense_step_ms"], row["step_ms"], row["evaluation_ms"]) > 0
    assert found["core_hours"] == pytest.approx(row["core_hours"])
    assert found["machine"]["cpu"]
