"""Evaluation of global models."""

from __future__ import annotations

from typing import cast

import msgspec
import numpy as np
import pytest

from sparsyedge.coordinator.model.evaluate import Evaluator, evaluate_levels, evaluation_samples
from sparsyedge.coordinator.record.records import Evaluation
from sparsyedge.edge.data import Dataset, Labels, Samples
from sparsyedge.edge.errors import DataError, TrainingError
from sparsyedge.edge.inference.eval_session import EvalSession
from sparsyedge.edge.inference.losses import r_squared
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.tensors import FloatArray, State


class FakeSession:
    """Answers class 0 for every sample, with the batch's size as its loss."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.unloaded = False

    def load(self, state: State) -> None:
        self.loaded = state

    def unload(self) -> None:
        self.unloaded = True

    def evaluate(self, x: FloatArray, y: Labels) -> tuple[float, FloatArray]:
        self.batches.append(len(y))
        return float(len(y)), np.tile(np.array([1, 0], dtype=np.float32), (len(y), 1))


def test_accuracy_and_loss_are_means_over_samples_not_over_batches() -> None:
    y = np.array([0] * 24 + [1] * 8, dtype=np.int64)
    samples = Samples(np.zeros((32, 1, 1, 1), dtype=np.float32), y)
    session = FakeSession()
    evaluation = Evaluator(cast("EvalSession", session), samples)({})
    assert session.batches == [10, 10, 10, 2]
    assert evaluation.accuracy == 0.75
    assert evaluation.loss == pytest.approx((10 * 10 * 3 + 2 * 2) / 32)
    assert session.unloaded


def test_batches_that_are_evaluated_at_the_same_time_give_the_same_figures() -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((97, 2), dtype=np.float32)
    samples = Samples(x, rng.integers(0, 2, 97))
    one, three = (Evaluator(cast("EvalSession", LossySession()), samples, at_once=count)({}) for count in (1, 3))
    assert three == one
    assert one.loss > 0


def test_what_goes_wrong_in_one_of_several_batches_ends_the_evaluation() -> None:
    samples = Samples(np.zeros((30, 2), dtype=np.float32), np.zeros(30, dtype=np.int64))
    session = BrokenSession()
    with pytest.raises(TrainingError, match="batch of 10"):
        Evaluator(cast("EvalSession", session), samples, at_once=2)({})
    assert session.unloaded


class LossySession(FakeSession):
    """Answers the sample itself; the sum of its losses depends on their order."""

    def evaluate(self, x: FloatArray, y: Labels) -> tuple[float, FloatArray]:
        return float(np.exp(20 * x[0, 0])), x


class BrokenSession(FakeSession):
    """Cannot evaluate anything."""

    def evaluate(self, x: FloatArray, y: Labels) -> tuple[float, FloatArray]:
        raise TrainingError(f"batch of {len(x)}")


class LinearSession(FakeSession):
    """Answers the sample itself, for a regression."""

    def evaluate(self, x: FloatArray, y: Labels) -> tuple[float, FloatArray]:
        self.batches.append(len(y))
        return 0.0, x.reshape(len(x), -1)


def test_a_regression_is_evaluated_by_its_errors_over_all_samples() -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((120, 2), dtype=np.float32) for _ in range(2))
    session = LinearSession()
    evaluation = Evaluator(cast("EvalSession", session), Samples(x, y))({})
    # Or a whole model would stay in memory until the next evaluation.
    assert session.unloaded
    assert (evaluation.accuracy, evaluation.by_class) == (None, ())
    assert evaluation.loss == pytest.approx(((x - y) ** 2).mean(), rel=1e-5)
    assert evaluation.rmse == pytest.approx(evaluation.loss**0.5)
    assert evaluation.r_squared == pytest.approx(r_squared(x, y))


def test_the_levels_of_a_regression_are_errors(manifest: Manifest, initial: State) -> None:
    method = msgspec.structs.replace(manifest.method, sparsities=(0.9, 0.5))
    found = evaluate_levels(
        lambda state: Evaluation(None, 4.0, rmse=2.0), initial, msgspec.structs.replace(manifest, method=method)
    )
    assert found == {"rmse_at/0.5": 2.0, "rmse_at/0.9": 2.0}


def test_a_regression_is_no_test_of_classes_and_the_other_way_round(manifest: Manifest) -> None:
    x = np.zeros((2, 512, 1, 1), dtype=np.float32)
    targets, labels = Samples(x, np.zeros(2, dtype=np.float32)), Samples(x, np.zeros(2, dtype=np.int64))
    with pytest.raises(DataError, match="own has labels of float32, which is a regression, the model tells 4 classes"):
        evaluation_samples(Dataset("own", targets, targets, 1), manifest)
    floats = msgspec.structs.replace(manifest, sample_type="float32", classes=1, task="regression")
    with pytest.raises(DataError, match="own has labels of int64, which are classes, the model is a regression"):
        evaluation_samples(Dataset("own", labels, labels, 2), floats)
    assert evaluation_samples(Dataset("own", targets, targets, 1), floats) is targets


def test_data_that_the_model_does_not_take_is_refused(manifest: Manifest) -> None:
    samples = Samples(np.zeros((2, 512, 1, 1), dtype=np.float32), np.zeros(2, dtype=np.int64))
    evaluation_samples(Dataset("own", samples, samples, 4), manifest)
    with pytest.raises(DataError, match="data set own has 3 classes, the artifacts were exported for 4"):
        evaluation_samples(Dataset("own", samples, samples, 3), manifest)
    other = msgspec.structs.replace(manifest, input_shape=(3, 32, 32))
    with pytest.raises(DataError, match=r"own has samples of shape \(512, 1, 1\), the model takes \(3, 32, 32\)"):
        evaluation_samples(Dataset("own", samples, samples, 4), other)


def test_test_data_goes_by_name_and_may_lack_classes(manifest: Manifest) -> None:
    named = msgspec.structs.replace(manifest, class_names=("coat", "dress", "shirt", "trouser"))
    samples = Samples(np.zeros((2, 512, 1, 1), dtype=np.float32), np.array([0, 1]))
    fitted = evaluation_samples(Dataset("own", samples, samples, 2, ("trouser", "coat")), named)
    assert fitted.y.tolist() == [3, 0]
