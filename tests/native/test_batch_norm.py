"""BatchNormAct at the edges: variances that cancel, constant channels, single values, NaN, bad input."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from fixtures.op_cases.case import Array, to_lanes
from fixtures.op_cases.norms import EPSILON, MOMENTUM, Norm

RunNode = Callable[..., list[Array]]


def from_lanes(lanes: Array, norm: Norm, halo: int) -> Array:
    """The images; asserts that everything around them is zero."""
    whole = np.moveaxis(lanes, -1, 1).reshape(-1, *lanes.shape[1:-1])
    images = whole[: norm.batch, :, halo : halo + norm.height, halo : halo + norm.width]
    assert to_lanes(images, halo).tobytes() == lanes.tobytes(), "halo and unused lanes must be +0"
    return images


@dataclass
class Data:
    """Random inputs, in torch's layout."""

    norm: Norm
    seed: int = 3
    offset: float = 0.5

    def __post_init__(self) -> None:
        rng, norm = np.random.default_rng(self.seed), self.norm
        self.x, self.residual, self.dy = rng.standard_normal((3, *norm.shape)).astype(np.float32)
        self.x += np.float32(self.offset)
        self.gamma, self.beta, self.mean = rng.standard_normal((3, norm.channels)).astype(np.float32)
        self.var = rng.uniform(0.5, 2, norm.channels).astype(np.float32)
        self.n = np.array([norm.batch], np.int64)

    def forward_inputs(self) -> list[Array | None]:
        in_halo, _, residual_halo = self.norm.halos
        residual = to_lanes(self.residual, residual_halo) if self.norm.residual else None
        return [to_lanes(self.x, in_halo), self.gamma, self.beta, self.mean, self.var, self.n, residual]

    def forward_options(self) -> dict[str, Any]:
        in_halo, out_halo, _ = self.norm.halos
        floats = {"epsilon": EPSILON, "momentum": MOMENTUM}
        return {"relu": int(self.norm.relu), "pad_in": in_halo, "pad_out": out_halo, **floats}


def assert_close(actual: Array, expected: Array, tolerance: float = 3e-6) -> None:
    assert np.abs(actual - expected).max() <= tolerance * max(1.0, np.abs(expected).max())


def forward(run_node: RunNode, data: Data, threads: int = 1) -> list[Array]:
    outputs = [True] * 5 + [data.norm.relu]
    return run_node("BatchNormAct", data.forward_inputs(), outputs, threads, **data.forward_options())


def backward(run_node: RunNode, data: Data, saved: list[Array], threads: int = 1) -> list[Array]:
    """dx with a halo one wider than x's, dgamma, dbeta and, with a residual, its gradient in the residual's halo."""
    norm = data.norm
    inputs = [to_lanes(data.dy, norm.halos[1]), to_lanes(data.x, norm.halos[0]), data.gamma, *saved[1:3], data.n]
    options = {"pad_in": norm.halos[0], "pad_out": norm.halos[0] + 1, "pad_residual": norm.halos[2]}
    positive = saved[5] if norm.relu else None
    return run_node("BatchNormActGrad", [*inputs, positive], [True] * 3 + [norm.residual], threads, **options)


def test_a_capped_relu_keeps_nan_and_passes_no_gradient_at_its_limits(run_node: RunNode) -> None:
    norm = Norm(16, 1, 1, 4, relu=True, residual=True, halos=(0, 0, 0))
    data = Data(norm)
    data.gamma[:] = 0  # what is left is the residual
    data.beta[:] = 0
    data.residual[:] = np.array([0.0, 6.0, 5.0, np.nan], np.float32)
    options = data.forward_options() | {"cap": 6.0}
    y, *_, positive = run_node("BatchNormAct", data.forward_inputs(), [True] * 6, **options)
    np.testing.assert_array_equal(from_lanes(y, norm, 0)[0, 0, 0], np.array([0, 6, 5, np.nan], np.float32))
    assert positive.view(np.uint16).ravel().tolist() == [0, 0, 0xFFFF, 0xFFFF]


def test_a_cap_that_nothing_fits_under_is_refused(run_node: RunNode) -> None:
    data = Data(Norm(16, 1, 1, 4, relu=True, residual=False))
    with pytest.raises(Exception, match="BatchNormAct: attribute cap is 0, must be above 0"):
        run_node("BatchNormAct", data.forward_inputs(), [True] * 6, **data.forward_options(), cap=0.0)


def test_positive_has_one_bit_for_every_element(run_node: RunNode) -> None:
    data = Data(Norm(17, 4, 3, 5, relu=True, residual=False))
    y, *_, positive = forward(run_node, data)
    bits = np.unpackbits(positive, axis=-1, bitorder="little")
    assert positive.shape == (2, 4, 3, 5, 2)
    assert np.array_equal(bits == 1, y[:, :, 1:-1, 1:-1] > 0)


def test_variance_far_from_zero_keeps_its_digits(run_node: RunNode) -> None:
    """In float, mean of squares minus squared mean would lose all digits here."""
    data = Data(Norm(16, 4, 16, 16, relu=False, residual=False), offset=1000.0)
    _, mean, inv_std, *_ = forward(run_node, data)
    x = data.x.astype(np.float64)
    assert np.abs(mean / x.mean((0, 2, 3)) - 1).max() < 1e-7
    assert np.abs(inv_std * np.sqrt(x.var((0, 2, 3)) + EPSILON) - 1).max() < 1e-6


def test_a_constant_channel_gives_finite_results(run_node: RunNode) -> None:
    """Such is the output of a layer whose mask became empty."""
    data = Data(Norm(16, 3, 4, 4, relu=True, residual=False))
    data.x[:] = np.array([0.0, 3.7, -1e4], np.float32).reshape(1, 3, 1, 1)
    saved = forward(run_node, data)
    dx, dgamma, _ = backward(run_node, data, saved)
    assert np.allclose(saved[2], 1 / np.sqrt(EPSILON), rtol=1e-2)
    assert_close(from_lanes(saved[0], data.norm, 1)[0, :, 0, 0], np.maximum(data.beta, 0), 1e-3)
    assert np.isfinite(dx).all()
    assert np.abs(dgamma).max() < 1e-3


def test_a_single_value_has_a_running_variance_of_zero_to_blend_in(run_node: RunNode) -> None:
    data = Data(Norm(1, 3, 1, 1, relu=False, residual=False))
    y, _, inv_std, new_mean, new_var = forward(run_node, data)
    assert_close(y[0, :, 1, 1, 0], data.beta)
    assert np.allclose(inv_std, 1 / np.sqrt(EPSILON))
    assert_close(new_mean, 0.9 * data.mean + 0.1 * data.x.ravel())
    assert_close(new_var, 0.9 * data.var)


def test_nan_is_not_hidden_by_relu(run_node: RunNode) -> None:
    data = Data(Norm(3, 2, 2, 2, relu=True, residual=False))
    data.x[1, 1, 0, 0] = np.nan
    y = from_lanes(forward(run_node, data)[0], data.norm, 1)
    assert np.isnan(y[:, 1]).all()
    assert np.isfinite(y[:, 0]).all()


def test_bad_input_is_refused_with_shape_and_limit(run_node: RunNode) -> None:
    data = Data(Norm(16, 4, 3, 3, relu=True, residual=True))
    options, outputs = data.forward_options(), [True] * 6
    for position, value, complaint in [
        (0, np.zeros((1, 4, 3, 3), np.float32), r"x has shape \[1,4,3,3\], must be \[G,C,H\+0,W\+0,16\]"),
        (1, np.zeros(3, np.float32), r"gamma has shape \[3\], must be \[4\], one value per channel"),
        (5, np.array([17]), "batch is 17, must be from 1 to 16 for 1 groups"),
        (5, np.array([0]), "batch is 0, must be from 1 to 16 for 1 groups"),
        (6, np.zeros((1, 4, 4, 3, 16), np.float32), r"residual has shape \[1,4,4,3,16\], must be \[1,4,3,3,16\] or"),
        (6, np.zeros((2, 4, 3, 3, 16), np.float32), r"residual has shape \[2,4,3,3,16\], must be \[1,4,3,3,16\] or"),
    ]:
        inputs = data.forward_inputs()
        inputs[position] = value
        with pytest.raises(Exception, match=rf"BatchNormAct: {complaint}"):
            run_node("BatchNormAct", inputs, outputs, **options)
    with pytest.raises(Exception, match="BatchNormAct: positive is not connected"):
        run_node("BatchNormAct", data.forward_inputs(), 5, **options)
    with pytest.raises(Exception, match="BatchNormAct: attribute epsilon is 0, must be above 0"):
        run_node("BatchNormAct", data.forward_inputs(), outputs, **{**options, "epsilon": 0.0})
