"""A session and a local job on real artifacts: state, steps, statistics, and how a job ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fixtures.training_api import NEEDS_TRAINING_API, evaluate, first_session
from numpy.typing import NDArray

from sparsyedge.edge.data import Samples
from sparsyedge.edge.errors import TrainingError
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.tensors import State, model_id
from sparsyedge.edge.training.dense_session import DenseSession
from sparsyedge.edge.training.trainer import JobCancelled, LocalJob, train


def batch(size: int, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((size, 3, 16, 16), dtype=np.float32), rng.integers(0, 5, size)


def job(**changes: object) -> LocalJob:
    values = {"device_id": "pi-01", "round_number": 1, "seed": 0, "epochs": 2, "batch_size": 8, "learning_rate": 0.05}
    return LocalJob(**{**values, **changes})  # type: ignore[arg-type]


def trained_state(artifacts: Artifacts, samples: Samples, the_job: LocalJob) -> State:
    session = first_session(artifacts)
    train(session, samples, the_job)
    return session.state()


def test_a_state_that_is_loaded_comes_back_bit_for_bit(tiny: Artifacts) -> None:
    session = first_session(tiny)
    rng = np.random.default_rng(1)
    state = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in tiny.manifest.shapes.items()}
    session.load(state)
    assert model_id(session.state()) == model_id(state)


def test_training_lowers_the_loss_on_what_it_sees(tiny: Artifacts) -> None:
    session = first_session(tiny)
    x, y = batch(32)
    before, _ = evaluate(tiny, session.state(), x, y)
    train(session, Samples(x, y), job(epochs=10))
    after, logits = evaluate(tiny, session.state(), x, y)
    assert after < before / 2
    assert logits.shape == (32, 5)


def test_the_same_job_gives_the_same_model_and_another_round_does_not(tiny: Artifacts) -> None:
    samples = Samples(*batch(40))
    first, again = (model_id(trained_state(tiny, samples, job())) for _ in range(2))
    assert first == again
    assert first != model_id(trained_state(tiny, samples, job(round_number=2)))


def test_the_last_batch_of_an_epoch_may_be_smaller(tiny: Artifacts) -> None:
    trained = train(first_session(tiny), Samples(*batch(19)), job(epochs=1))
    assert trained.steps == 3


@pytest.mark.parametrize("size", [1, 2, 5])
def test_running_statistics_follow_torch_for_small_batches(tiny: Artifacts, size: int) -> None:
    session = first_session(tiny)
    x, y = batch(size)
    stem = session.state()["conv1.weight"]
    theta = torch.from_numpy(np.sign(stem) * np.abs(stem) ** 1.25)
    norm = torch.nn.BatchNorm2d(4)
    norm(torch.conv2d(torch.from_numpy(x), theta, padding=1))
    session.train_step(x, y, 0.01)
    after = session.state()
    assert norm.running_mean is not None
    assert norm.running_var is not None
    np.testing.assert_allclose(after["bn1.running_mean"], norm.running_mean.numpy(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(after["bn1.running_var"], norm.running_var.numpy(), rtol=1e-4)


@NEEDS_TRAINING_API
def test_evaluation_changes_nothing(tiny: Artifacts) -> None:
    session = DenseSession(tiny)
    before = model_id(session.state())
    session.evaluate(*batch(8))
    assert model_id(session.state()) == before


def test_a_job_ends_when_its_round_is_over(tiny: Artifacts) -> None:
    answers = iter([True, True, False])
    with pytest.raises(JobCancelled, match="after 2 steps"):
        train(first_session(tiny), Samples(*batch(40)), job(), keep_going=lambda: next(answers))


def test_a_loss_that_is_not_finite_ends_the_job_with_the_learning_rate_in_the_sentence(tiny: Artifacts) -> None:
    x, y = batch(8)
    x[0, 0, 0, 0] = np.nan
    with pytest.raises(TrainingError, match=r"loss became nan at step 1 .* learning rate 0\.05"):
        train(first_session(tiny), Samples(x, y), job())


def test_a_batch_of_the_wrong_shape_is_named(tiny: Artifacts) -> None:
    with pytest.raises(TrainingError, match=r"\(4, 1, 16, 16\)"):
        first_session(tiny).train_step(np.zeros((4, 1, 16, 16), np.float32), np.zeros(4, np.int64), 0.1)
