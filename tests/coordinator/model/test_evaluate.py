"""Evaluation of global models."""

from __future__ import annotations

from typing import cast

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from sparsyedge.coordinator.model.evaluate import Evaluator, evaluation_samples, global_sparsity
from sparsyedge.edge.data import Dataset, Samples
from sparsyedge.edge.errors import DataError
from sparsyedge.edge.inference.eval_session import EvalSession
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.tensors import FloatArray, State


class FakeSession:
    """Answers class 0 for every sample, with the batch's size as its loss."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def load(self, state: State) -> None:
        self.loaded = state

    def unload(self) -> None:
        self.unloaded = True

    def evaluate(self, x: FloatArray, y: NDArray[np.int64]) -> tuple[float, FloatArray]:
        self.batches.append(len(y))
        return float(len(y)), np.tile(np.array([1, 0], dtype=np.float32), (len(y), 1))


def test_accuracy_and_loss_are_means_over_samples_not_over_batches() -> None:
    y = np.array([0] * 90 + [1] * 30, dtype=np.int64)
    samples = Samples(np.zeros((120, 1, 1, 1), dtype=np.float32), y)
    session = FakeSession()
    evaluation = Evaluator(cast("EvalSession", session), samples)({})
    assert session.batches == [50, 50, 20]
    assert evaluation.accuracy == 0.75
    assert evaluation.loss == pytest.approx((50 * 50 * 2 + 20 * 20) / 120)


def test_global_sparsity_counts_exact_zeros_of_prunable_weights() -> None:
    state = {"w": np.array([0, 1, 0, 2], dtype=np.float32), "b": np.zeros(9, dtype=np.float32)}
    assert global_sparsity(state, ["w"]) == 0.5
    assert global_sparsity(state, []) == 0.0


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
