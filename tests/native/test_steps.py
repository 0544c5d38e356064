"""SGD steps, element by element against double precision; zeros stay zeros."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest

FloatArray = npt.NDArray[np.float32]
RunOp = Callable[..., FloatArray]
OpModel = Callable[[str, list[Any]], bytes]
ModelSession = Callable[[bytes], Any]

BETAS = [1.0, 1.15, 1.25, 2.0]
DECAY, LR = 1e-3, 0.5
EPSILON = float(np.finfo(np.float32).eps)


def some_weights(size: int = 5000) -> tuple[FloatArray, FloatArray]:
    rng = np.random.default_rng(5)
    w = (rng.standard_normal(size) * 10.0 ** rng.uniform(-6, 1, size)).astype(np.float32)
    w[::3] = 0
    return w, rng.standard_normal(size).astype(np.float32)


@pytest.mark.parametrize("beta", BETAS)
def test_power_step_agrees_with_double_precision(run_op: RunOp, beta: float) -> None:
    w, dtheta = some_weights()
    wide = np.where(w == 0, 1.0, np.abs(w.astype(np.float64)))
    slope = np.where((w == 0) & (beta != 1), 0.0, np.float64(np.float32(beta)) * wide ** (np.float32(beta) - 1.0))
    change = LR * (dtheta * slope + np.float32(DECAY) * w)
    result = run_op("PowerPropStep", w, dtheta, beta, DECAY, LR)
    assert np.all(np.abs(result - (w - change)) <= 6 * EPSILON * (np.abs(w) + np.abs(change)))


@pytest.mark.parametrize("beta", [1.0006, 1.15, 1.25, 2.0])
@pytest.mark.parametrize("dtheta", [1.0, -3e38, np.inf, np.nan])
def test_a_zero_weight_stays_exactly_zero(run_op: RunOp, beta: float, dtheta: float) -> None:
    w = np.array([0.0, -0.0] * 17, np.float32)
    result = run_op("PowerPropStep", w, np.full_like(w, dtheta), beta, DECAY, LR)
    assert not result.any()


@pytest.mark.parametrize("beta", BETAS)
def test_step_is_the_gradient_op_times_the_learning_rate(run_op: RunOp, beta: float) -> None:
    w, dtheta = some_weights()
    expected = w - np.float32(LR) * run_op("PowerPropGrad", dtheta, w, beta, DECAY)
    assert run_op("PowerPropStep", w, dtheta, beta, DECAY, LR).tobytes() == expected.tobytes()


def test_decay_step(run_op: RunOp) -> None:
    p, dp = some_weights()
    expected = p - np.float32(LR) * (dp + np.float32(DECAY) * p)
    assert run_op("DecayStep", p, dp, DECAY, LR).tobytes() == expected.tobytes()


@pytest.mark.parametrize("op", ["PowerPropStep", "DecayStep"])
def test_the_new_value_may_be_written_over_the_old_one(
    run_op: RunOp, op_model: OpModel, model_session: ModelSession, op: str
) -> None:
    w, dtheta = some_weights()
    scalars = [1.25, DECAY, LR][-2 if op == "DecayStep" else -3 :]
    expected = run_op(op, w, dtheta, *scalars)
    arrays = [w.copy(), dtheta, *(np.array([s], np.float32) for s in scalars)]
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(a) for a in arrays]
    session = model_session(op_model(op, [None] * len(arrays)))
    binding = session.io_binding()
    for i, value in enumerate(values):
        binding.bind_ortvalue_input(f"input{i}", value)
    binding.bind_ortvalue_output("output", values[0])
    session.run_with_iobinding(binding)
    assert values[0].numpy().tobytes() == expected.tobytes()


@pytest.mark.parametrize("op", ["PowerPropStep", "DecayStep"])
def test_an_empty_layer_takes_an_empty_step(run_op: RunOp, op: str) -> None:
    scalars = [1.25, DECAY, LR][-2 if op == "DecayStep" else -3 :]
    assert run_op(op, np.zeros(0, np.float32), np.zeros(0, np.float32), *scalars).shape == (0,)


@pytest.mark.parametrize("lr", [-0.1, np.inf, np.nan])
def test_a_learning_rate_without_meaning_is_refused(run_op: RunOp, lr: float) -> None:
    w, dtheta = some_weights(8)
    with pytest.raises(Exception, match=r"PowerPropStep: lr is .*, must be finite and at least 0"):
        run_op("PowerPropStep", w, dtheta, 1.25, DECAY, lr)
    with pytest.raises(Exception, match=r"DecayStep: dp has shape \[8\] and p has shape \[4\]; they must be equal"):
        run_op("DecayStep", w[:4], dtheta, DECAY, 0.1)
