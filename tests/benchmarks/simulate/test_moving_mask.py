"""A run whose mask moves: when, and how far."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from sparsyedge.benchmarks.simulate import simulate
from sparsyedge.benchmarks.simulate.config import ExportConfig, SimulatedRunConfig, SimulationConfig
from sparsyedge.coordinator.config import LearningRateConfig
from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.model.methods import MethodConfig


def make_config(folder: Path, artifacts: Path, rounds: int) -> SimulatedRunConfig:
    return SimulatedRunConfig(
        name="sim",
        artifacts=str(artifacts),
        run_dir=str(folder),
        dataset="digits",
        rounds=rounds,
        cohort_size=2,
        learning_rate=LearningRateConfig(start=0.1, end=0.1),
        method=MethodConfig(name="sparsyfed", sparsity=0.9, start="erk", regrow_every=2),
        simulation=SimulationConfig(devices=4, alpha=1.0, meter="none", export=ExportConfig(width=4)),
    )


@pytest.mark.heavy
def test_the_mask_moves_every_other_round_but_the_last_and_never_beyond_the_target(tmp_path: Path) -> None:
    config = make_config(tmp_path / "run", tmp_path / "artifacts", 4)
    simulate(config, workers=1)
    with closing(Store.open(config.run_path)) as store:
        figures = store.metrics()
    assert [figures[number]["regrown_global"] > 0 for number in (1, 2, 3, 4)] == [False, True, False, False]
    assert all(figures[number]["sparsity_prunable"] >= 0.8999 for number in figures)
