"""From w to theta in numpy."""

from __future__ import annotations

import numpy as np
import pytest

from sparsyedge.edge.model.methods import make_method
from sparsyedge.edge.model.reparametrise import effective_weights, power, weights_of


def test_power_keeps_zeros_and_signs() -> None:
    weights = np.array([-4.0, -0.5, 0.0, 0.5, 4.0], dtype=np.float32)
    theta = power(weights, 1.25)
    np.testing.assert_allclose(theta, np.sign(weights) * np.abs(weights) ** 1.25, rtol=1e-6)
    assert theta[2] == 0
    assert theta.dtype == np.float32


@pytest.mark.parametrize("shape", [(8, 3, 3, 3), (20, 4)])
def test_the_exact_norm_is_the_largest_singular_value_of_the_weights_themselves(shape: tuple[int, ...]) -> None:
    weights = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    sigma = np.linalg.svd(weights.reshape(len(weights), -1).astype(np.float64), compute_uv=False)[0]
    exact = effective_weights(make_method("spectral", sigma="exact"), weights)
    np.testing.assert_allclose(exact, weights * np.abs(weights) / sigma, rtol=1e-6)
    # The norm of |W| is larger: nothing cancels out.
    assert (np.abs(effective_weights(make_method("spectral"), weights)) < np.abs(exact)).all()


@pytest.mark.parametrize("options", [{}, {"sigma": "exact"}])
def test_weights_of_a_trained_network_come_back_from_the_norm(options: dict[str, str]) -> None:
    method = make_method("spectral", **options)
    theta = np.random.default_rng(2).standard_normal((6, 10)).astype(np.float32)
    np.testing.assert_allclose(effective_weights(method, weights_of(method, theta)), theta, rtol=1e-5)
