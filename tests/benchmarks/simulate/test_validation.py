"""A validation part: which samples it takes, and which evaluations see it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sparsyedge.benchmarks.simulate import simulate
from sparsyedge.benchmarks.simulate.config import SimulatedRunConfig, SimulationConfig
from sparsyedge.benchmarks.simulate.validation import split_validation
from sparsyedge.coordinator.model.evaluate import Evaluator, evaluation_samples
from sparsyedge.coordinator.model.initial_model import read_given_model
from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.data import Dataset, Samples, load
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.inference.eval_session import EvalSession
from sparsyedge.edge.model.artifacts import Artifacts


def numbered(classes: list[int]) -> Dataset:
    """Samples whose only value is their place."""
    places = np.arange(len(classes), dtype=np.float32)[:, np.newaxis]
    return Dataset("made", Samples(places, np.array(classes)), Samples(places[:1], np.array(classes[:1])), classes=3)


def test_every_sample_is_trained_on_or_set_aside() -> None:
    whole = numbered([0, 1, 2] * 20)
    rest, aside = split_validation(whole, 12, seed=1, devices=2)
    assert len(aside) == 12
    assert sorted([*rest.train.x[:, 0], *aside.x[:, 0]]) == list(range(60))


def test_classes_keep_their_shares() -> None:
    rest, aside = split_validation(numbered([0] * 60 + [1] * 30 + [2] * 10), 20, seed=3, devices=2)
    assert np.bincount(aside.y).tolist() == [12, 6, 2]
    assert np.bincount(rest.train.y).tolist() == [48, 24, 8]


def test_the_seed_decides_which_samples() -> None:
    parts = [split_validation(numbered([0, 1, 2] * 20), 12, seed=seed, devices=2)[1].x.tolist() for seed in (1, 1, 2)]
    assert parts[0] == parts[1] != parts[2]


def test_a_validation_part_that_leaves_too_little_to_train_on_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"`simulation.validation` has value 59.* allowed are 0 to 58"):
        split_validation(numbered([0, 1, 2] * 20), 59, seed=1, devices=2)


@pytest.mark.heavy
def test_rounds_see_the_validation_part_and_the_last_model_the_test_part(
    digits_artifacts: Artifacts, tmp_path: Path
) -> None:
    config = SimulatedRunConfig(
        name="sim",
        artifacts=str(digits_artifacts.directory),
        run_dir=str(tmp_path / "run"),
        dataset="digits",
        rounds=2,
        cohort_size=3,
        simulation=SimulationConfig(devices=10, alpha=1.0, meter="none", validation=300),
    )
    summary = simulate(config, workers=1)
    model, _ = read_given_model(tmp_path / "run", digits_artifacts)
    digits = load("digits", None)
    _, aside = split_validation(digits, 300, seed=1337, devices=10)
    session = EvalSession(digits_artifacts, threads=1)
    on_validation = Evaluator(session, evaluation_samples(replace(digits, test=aside), digits_artifacts.manifest))(
        model
    )
    on_test = Evaluator(session, evaluation_samples(digits, digits_artifacts.manifest))(model)
    assert summary.rounds[-1].test_accuracy == on_validation.accuracy
    with closing(Store.open(tmp_path / "run")) as store:
        figures = store.metrics()
    assert figures[2]["final_test_accuracy"] == on_test.accuracy
    assert "final_test_accuracy" not in figures[1]
