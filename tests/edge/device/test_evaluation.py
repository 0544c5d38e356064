"""What a device finds is what the coordinator would find on the same samples."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import UNSET

from sparsyedge.coordinator.model.evaluate import Evaluator
from sparsyedge.edge.data import Samples, load
from sparsyedge.edge.device.evaluation import EvaluationDesk
from sparsyedge.edge.inference.eval_session import EvalSession, Lent
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.checkpoint import read_initial_state
from sparsyedge.edge.model.reparametrise import network_weights
from sparsyedge.edge.protocol.messages import Score
from sparsyedge.edge.tensors import State
from sparsyedge.edge.training.trainer import JobCancelled

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def samples() -> Samples:
    return load("digits", None).test.take(np.arange(120))


def score(artifacts: Artifacts, state: State, samples: Samples, keep_going: bool = True) -> object:
    return EvaluationDesk().score(artifacts, "0" * 64, state, samples, keep_going=lambda: keep_going)


def test_a_device_and_the_coordinator_find_the_same(digits_artifacts: Artifacts, samples: Samples) -> None:
    state = read_initial_state(digits_artifacts)
    expected = Evaluator(EvalSession(digits_artifacts), samples)(state)
    found = score(digits_artifacts, state, samples)
    assert isinstance(found, Score)
    assert found.loss == pytest.approx(expected.loss, rel=1e-12)
    assert found.accuracy == expected.accuracy


def test_a_lent_state_scores_the_same_and_is_overwritten(digits_artifacts: Artifacts, samples: Samples) -> None:
    state = read_initial_state(digits_artifacts)
    evaluate = Evaluator(EvalSession(digits_artifacts), samples)
    expected = evaluate(state)
    weight = digits_artifacts.manifest.prunable[0]
    before = state[weight].copy()
    assert evaluate(Lent(state)) == expected
    assert not np.array_equal(state[weight], before)
    theta = network_weights(
        digits_artifacts.manifest.method, weight, before, prunable=digits_artifacts.manifest.prunable
    )
    np.testing.assert_array_equal(state[weight], theta)


def test_a_model_that_is_not_finite_has_no_score(digits_artifacts: Artifacts, samples: Samples) -> None:
    state = {name: np.full_like(tensor, np.nan) for name, tensor in read_initial_state(digits_artifacts).items()}
    assert score(digits_artifacts, state, samples) is UNSET


def test_an_evaluation_ends_with_its_round(digits_artifacts: Artifacts, samples: Samples) -> None:
    with pytest.raises(JobCancelled):
        score(digits_artifacts, read_initial_state(digits_artifacts), samples, keep_going=False)
