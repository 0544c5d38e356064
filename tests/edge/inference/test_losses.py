"""Losses and figures, beside the definitions that others use."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sparsyedge.edge.inference.losses import RegressionErrors, accuracy, mean_loss, mean_squared_error, r_squared, rmse

RNG = np.random.default_rng(5)
LOGITS = RNG.standard_normal((40, 7), dtype=np.float32) * 5
LABELS = RNG.integers(0, 7, 40)
OUTPUTS = RNG.standard_normal((40, 3), dtype=np.float32)
TARGETS = OUTPUTS + RNG.standard_normal((40, 3), dtype=np.float32)


@pytest.mark.heavy
def test_losses_are_torch_s() -> None:
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    of_classes = functional.cross_entropy(torch.from_numpy(LOGITS), torch.from_numpy(LABELS))
    of_regression = functional.mse_loss(torch.from_numpy(OUTPUTS), torch.from_numpy(TARGETS))
    assert mean_loss("classes", LOGITS, LABELS) == pytest.approx(float(of_classes), rel=1e-5)
    assert mean_loss("regression", OUTPUTS, TARGETS) == pytest.approx(float(of_regression), rel=1e-5)


def test_cross_entropy_of_large_logits_does_not_overflow() -> None:
    logits = np.array([[1e4, 0], [0, 1e4]], dtype=np.float32)
    assert mean_loss("classes", logits, np.array([0, 0])) == pytest.approx(5000)


def test_accuracy_is_the_share_of_largest_logits() -> None:
    assert accuracy(LOGITS, LOGITS.argmax(axis=1)) == 1
    assert accuracy(np.eye(4, dtype=np.float32), np.array([0, 1, 2, 0])) == 0.75


def test_r_squared_is_scikit_learn_s() -> None:
    from sklearn.metrics import r2_score

    assert r_squared(OUTPUTS, TARGETS) == pytest.approx(r2_score(TARGETS, OUTPUTS))
    assert r_squared(TARGETS, TARGETS) == 1


def test_nothing_is_explained_of_targets_that_do_not_vary() -> None:
    assert r_squared(OUTPUTS, np.ones_like(OUTPUTS)) is None
    assert rmse(OUTPUTS, np.ones_like(OUTPUTS)) > 0


@pytest.mark.parametrize("far", [0, 1e6])
def test_batches_of_any_size_add_up_to_the_whole(far: float) -> None:
    targets = TARGETS.astype(np.float64) + far
    outputs = OUTPUTS.astype(np.float64) + far
    errors = RegressionErrors()
    for start, stop in ((0, 1), (1, 17), (17, 40)):
        errors.add(outputs[start:stop], targets[start:stop])  # type: ignore[arg-type]
    assert errors.samples == 40
    assert errors.mse == pytest.approx(mean_squared_error(OUTPUTS, TARGETS), rel=1e-6)
    assert errors.rmse == pytest.approx(math.sqrt(errors.mse))
    assert errors.r_squared == pytest.approx(r_squared(OUTPUTS, TARGETS), rel=1e-6)


def test_no_batch_has_no_error() -> None:
    assert math.isnan(RegressionErrors().mse)
    assert RegressionErrors().r_squared is None


def test_shapes_that_differ_are_refused_instead_of_spread() -> None:
    with pytest.raises(ValueError, match=r"\(40, 3\) and targets of shape \(40,\) differ"):
        mean_loss("regression", OUTPUTS, TARGETS[:, 0])
