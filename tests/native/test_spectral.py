"""The spectral re-parametrisation over non-zeros alone, element by element against torch on the whole matrix."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

Array = npt.NDArray[Any]
RunNode = Callable[..., list[Array]]

ROWS, COLUMNS = 24, 45
FLOOR = 1e-12
DECAY, LR = np.array([1e-3], np.float32), np.array([0.5], np.float32)
MATRIX = {"rows": ROWS, "columns": COLUMNS, "floor": FLOOR}


def layer(density: float) -> tuple[Array, Array, Array]:
    """Values, their positions in random order, and the gradient of theta."""
    rng = np.random.default_rng(11)
    kept = np.flatnonzero(rng.random(ROWS * COLUMNS) < density)
    positions = rng.permutation(kept).astype(np.int32)
    values = rng.standard_normal(positions.size).astype(np.float32)
    return values, positions, rng.standard_normal(positions.size).astype(np.float32)


def by_torch(values: Array, positions: Array, dtheta: Array) -> tuple[Array, Array]:
    """theta and the values after a step, from the definition."""
    w = torch.zeros(ROWS * COLUMNS, dtype=torch.float64)
    w[positions] = torch.from_numpy(values).double()
    w.requires_grad_()
    magnitude = w.abs().reshape(ROWS, COLUMNS)
    left = magnitude.sum(1)
    u = left / (left @ left + FLOOR).sqrt()
    right = u @ magnitude
    theta = w * w.abs() / (right @ right + FLOOR).sqrt()
    theta[positions].backward(torch.from_numpy(dtheta).double())  # type: ignore[no-untyped-call]
    assert w.grad is not None
    new = w - float(LR[0]) * (w.grad + float(DECAY[0]) * w)
    return theta.detach().numpy()[positions], new.detach().numpy()[positions]


@pytest.mark.parametrize("density", [1.0, 0.5, 0.02])
def test_theta_and_step_are_those_of_the_whole_matrix(run_node: RunNode, density: float) -> None:
    values, positions, dtheta = layer(density)
    theta, new = by_torch(values, positions, dtheta)
    (found,) = run_node("SpectralProp", [values, positions], **MATRIX)
    np.testing.assert_allclose(found, theta, rtol=1e-6)
    (found,) = run_node("SpectralStep", [values, dtheta, positions, DECAY, LR], **MATRIX)
    np.testing.assert_allclose(found, new, rtol=1e-5, atol=1e-7)


def exactly_by_torch(values: Array, positions: Array, dtheta: Array, shape: tuple[int, int]) -> tuple[Array, Array]:
    """theta and the gradient of the values, with the largest singular value of W from torch's SVD."""
    w = torch.zeros(shape[0] * shape[1], dtype=torch.float64)
    w[positions] = torch.from_numpy(values).double()
    w.requires_grad_()
    sigma = (torch.linalg.matrix_norm(w.reshape(shape), 2) ** 2 + FLOOR).sqrt()
    theta = w * w.abs() / sigma
    theta[positions].backward(torch.from_numpy(dtheta).double())
    assert w.grad is not None
    return theta.detach().numpy()[positions], w.grad.numpy()[positions]


@pytest.mark.parametrize("shape", [(24, 45), (45, 24), (64, 576), (1, 9)])
@pytest.mark.parametrize("density", [1.0, 0.3, 0.05])
def test_the_exact_norm_is_the_largest_singular_value(
    run_node: RunNode, density: float, shape: tuple[int, int]
) -> None:
    rng = np.random.default_rng(13)
    size = shape[0] * shape[1]
    positions = rng.permutation(np.flatnonzero(rng.random(size) < max(density, 2 / size))).astype(np.int32)
    values, dtheta = rng.standard_normal((2, positions.size)).astype(np.float32)
    theta, gradient = exactly_by_torch(values, positions, dtheta, shape)
    matrix = {"rows": shape[0], "columns": shape[1], "floor": FLOOR, "exact": 1}
    (found,) = run_node("SpectralProp", [values, positions], **matrix)
    np.testing.assert_allclose(found, theta, rtol=1e-6)
    (found,) = run_node("SpectralGrad", [values, dtheta, positions], **matrix)
    np.testing.assert_allclose(found, gradient, rtol=1e-4, atol=1e-5)
    (stepped,) = run_node("SpectralStep", [values, dtheta, positions, DECAY, LR], **matrix)
    expected = values - float(LR[0]) * (gradient + float(DECAY[0]) * values)
    np.testing.assert_allclose(stepped, expected, rtol=1e-4, atol=1e-5)


def test_the_exact_norm_of_nothing_divides_by_the_floor(run_node: RunNode) -> None:
    none, nowhere = np.zeros(0, np.float32), np.zeros(0, np.int32)
    assert run_node("SpectralStep", [none, none, nowhere, DECAY, LR], **MATRIX, exact=1)[0].shape == (0,)
    zeros, places = np.zeros(4, np.float32), np.arange(4, dtype=np.int32)
    assert not run_node("SpectralProp", [zeros, places], **MATRIX, exact=1)[0].any()
    assert not run_node("SpectralStep", [zeros, zeros + 1, places, DECAY, LR], **MATRIX, exact=1)[0].any()


def test_zeros_among_the_values_change_nothing_and_stay_zeros(run_node: RunNode) -> None:
    values, positions, dtheta = layer(1.0)
    values[::3] = 0
    kept = values != 0
    (whole,) = run_node("SpectralStep", [values, dtheta, positions, DECAY, LR], **MATRIX)
    (part,) = run_node("SpectralStep", [values[kept], dtheta[kept], positions[kept], DECAY, LR], **MATRIX)
    assert not whole[~kept].any()
    assert whole[kept].tobytes() == part.tobytes()


def test_a_layer_without_weights_takes_an_empty_step(run_node: RunNode) -> None:
    none, nowhere = np.zeros(0, np.float32), np.zeros(0, np.int32)
    assert run_node("SpectralProp", [none, nowhere], **MATRIX)[0].shape == (0,)
    assert run_node("SpectralStep", [none, none, nowhere, DECAY, LR], **MATRIX)[0].shape == (0,)


@pytest.mark.parametrize(
    ("positions", "complaint"),
    [
        ([0, 1], r"positions has shape \[2\] and w has shape \[3\]; they must be equal"),
        ([0, 1, ROWS * COLUMNS], r"positions\[2\] is 1080, must be at least 0 and below 1080"),
        ([0, -1, 2], r"positions\[1\] is -1, must be at least 0 and below 1080"),
    ],
)
def test_positions_outside_the_matrix_are_refused(run_node: RunNode, positions: list[int], complaint: str) -> None:
    w = np.ones(3, np.float32)
    with pytest.raises(Exception, match=f"SpectralProp: {complaint}"):
        run_node("SpectralProp", [w, np.array(positions, np.int32)], **MATRIX)
    with pytest.raises(Exception, match=f"SpectralStep: {complaint}"):
        run_node("SpectralStep", [w, w, np.array(positions, np.int32), DECAY, LR], **MATRIX)
