from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch

FloatArray = npt.NDArray[np.float32]
RunOp = Callable[..., FloatArray]

BETAS = [1.0, 1.15, 1.25, 2.0]
POWER_BETAS = [1.0006, 1.15, 1.25, 2.0]
WEIGHT_DECAY = 1e-3
EPSILON = float(np.finfo(np.float32).eps)
# Two rounded roots and a product, or one pow and two products: below 3 ulp either way.
MAX_ULP = 4


def some_weights(shape: tuple[int, ...] = (64, 16, 3, 3)) -> FloatArray:
    """Weights over many magnitudes, half of them pruned."""
    rng = np.random.default_rng(7)
    w = rng.standard_normal(shape) * 10.0 ** rng.uniform(-8, 2, shape)
    return np.where(rng.random(shape) < 0.5, 0.0, w).astype(np.float32)


def torch_theta(w: torch.Tensor, beta: float) -> torch.Tensor:
    return torch.sign(w) * torch.abs(w) ** float(np.float32(beta))


@pytest.mark.parametrize("beta", BETAS)
def test_theta_agrees_with_torch_in_double_precision(run_op: RunOp, beta: float) -> None:
    w = some_weights()
    expected = torch_theta(torch.from_numpy(w).double(), beta).numpy()
    theta = run_op("PowerProp", w, beta, WEIGHT_DECAY)
    assert theta.shape == w.shape
    assert np.all(np.abs(theta - expected) <= MAX_ULP * EPSILON * np.abs(expected))


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("weight_decay", [0.0, WEIGHT_DECAY])
def test_gradient_agrees_with_torch_in_double_precision(run_op: RunOp, beta: float, weight_decay: float) -> None:
    w = some_weights()
    w[w == 0] = 0.25  # zeros have tests of their own
    dtheta = np.random.default_rng(8).standard_normal(w.shape).astype(np.float32)
    leaf = torch.from_numpy(w).double().requires_grad_()
    torch_theta(leaf, beta).backward(torch.from_numpy(dtheta).double())  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    chain, decay = leaf.grad.numpy(), float(np.float32(weight_decay)) * w.astype(np.float64)
    dw = run_op("PowerPropGrad", dtheta, w, beta, weight_decay)
    # The two terms may cancel, so the error is measured against their size and not against the sum's.
    assert np.all(np.abs(dw - (chain + decay)) <= MAX_ULP * EPSILON * (np.abs(chain) + np.abs(decay)))


@pytest.mark.parametrize("beta", POWER_BETAS)
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_theta_of_a_zero_weight_is_positive_zero(run_op: RunOp, beta: float, zero: float) -> None:
    theta = run_op("PowerProp", np.full(33, zero, np.float32), beta, WEIGHT_DECAY)
    assert theta.tobytes() == np.zeros(33, np.float32).tobytes()


@pytest.mark.parametrize("beta", POWER_BETAS)
@pytest.mark.parametrize("zero", [0.0, -0.0])
@pytest.mark.parametrize("dtheta", [1.0, -3e38, np.inf, -np.inf, np.nan])
def test_gradient_of_a_zero_weight_is_exactly_zero_whatever_comes_in(
    run_op: RunOp, beta: float, zero: float, dtheta: float
) -> None:
    w = np.full(33, zero, np.float32)
    dw = run_op("PowerPropGrad", np.full_like(w, dtheta), w, beta, WEIGHT_DECAY)
    assert dw.tobytes() == np.zeros(33, np.float32).tobytes()


def test_beta_one_copies_the_weights_bit_for_bit(run_op: RunOp) -> None:
    w = np.array([0.0, -0.0, 1.5, -2.5, np.inf, 1e-45], np.float32)
    assert run_op("PowerProp", w, 1.0, WEIGHT_DECAY).tobytes() == w.tobytes()


def test_beta_one_lets_the_gradient_through_to_zero_weights(run_op: RunOp) -> None:
    dtheta, w = np.array([3.0, -4.0], np.float32), np.zeros(2, np.float32)
    assert run_op("PowerPropGrad", dtheta, w, 1.0, WEIGHT_DECAY).tolist() == [3.0, -4.0]


@pytest.mark.parametrize("beta", POWER_BETAS)
def test_infinity_and_nan_are_not_hidden(run_op: RunOp, beta: float) -> None:
    theta = run_op("PowerProp", np.array([np.inf, -np.inf, np.nan], np.float32), beta, WEIGHT_DECAY)
    assert theta[0] == np.inf
    assert theta[1] == -np.inf
    assert np.isnan(theta[2])


@pytest.mark.parametrize("beta", BETAS)
def test_a_layer_without_weights_gives_an_empty_result(run_op: RunOp, beta: float) -> None:
    empty = np.zeros((0, 3), np.float32)
    assert run_op("PowerProp", empty, beta, WEIGHT_DECAY).shape == (0, 3)
    assert run_op("PowerPropGrad", empty, empty, beta, WEIGHT_DECAY).shape == (0, 3)


@pytest.mark.parametrize("beta", BETAS)
def test_a_scalar_weight_is_a_layer_of_one(run_op: RunOp, beta: float) -> None:
    theta = run_op("PowerProp", np.array(1.0, np.float32), beta, WEIGHT_DECAY)
    assert theta.shape == ()
    assert theta == 1.0
