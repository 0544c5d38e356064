"""From w to theta in numpy."""

from __future__ import annotations

import numpy as np

from sparsyedge.edge.model.reparametrise import power


def test_power_keeps_zeros_and_signs() -> None:
    weights = np.array([-4.0, -0.5, 0.0, 0.5, 4.0], dtype=np.float32)
    theta = power(weights, 1.25)
    np.testing.assert_allclose(theta, np.sign(weights) * np.abs(weights) ** 1.25, rtol=1e-6)
    assert theta[2] == 0
    assert theta.dtype == np.float32
