from collections.abc import Callable

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
RunOp = Callable[..., FloatArray]


def test_parameters_pass_unchanged_bit_for_bit(run_op: RunOp) -> None:
    p = np.array([[0.0, -0.0, 1.5], [np.inf, np.nan, -1e-45]], np.float32)
    out = run_op("Decay", p, 1e-3)
    assert out.shape == p.shape
    assert out.tobytes() == p.tobytes()


def test_gradient_gains_the_decayed_parameter(run_op: RunOp) -> None:
    rng = np.random.default_rng(3)
    dp, p = rng.standard_normal((2, 40_000)).astype(np.float32)
    assert np.array_equal(run_op("DecayGrad", dp, p, 1e-3), dp + np.float32(1e-3) * p)


def test_without_decay_the_gradient_passes_unchanged(run_op: RunOp) -> None:
    dp, p = np.array([1.0, -2.0], np.float32), np.array([5.0, 7.0], np.float32)
    assert run_op("DecayGrad", dp, p, 0.0).tolist() == [1.0, -2.0]
