"""BatchNormAct and its gradient against torch in double precision, over shapes, batches and what is fused."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

Array = npt.NDArray[Any]
RunNode = Callable[..., list[Array]]

EPSILON, MOMENTUM = 1e-5, 0.1
# Of the largest value: a few roundings each, and the float that the mean and the scale are kept in.
TOLERANCE = 3e-6


@dataclass(frozen=True)
class Case:
    batch: int
    channels: int
    height: int
    width: int
    relu: bool
    residual: bool
    halos: tuple[int, int, int] = (0, 1, 1)  # x, y, residual

    def __str__(self) -> str:
        extras = ("-relu" if self.relu else "") + ("-residual" if self.residual else "")
        return f"{self.batch}x{self.channels}x{self.height}x{self.width}{extras}"


CASES = [
    Case(16, 8, 32, 32, relu=True, residual=True),
    Case(16, 5, 8, 8, relu=True, residual=False, halos=(1, 0, 0)),
    Case(16, 40, 4, 4, relu=False, residual=False),
    Case(1, 3, 8, 8, relu=True, residual=True, halos=(2, 2, 0)),
    Case(5, 3, 1, 9, relu=True, residual=True, halos=(0, 3, 3)),
    Case(17, 4, 7, 5, relu=False, residual=True),
    Case(33, 6, 5, 3, relu=True, residual=True),
    Case(5, 7, 1, 1, relu=True, residual=False),
]


def to_lanes(x: Array, halo: int = 0) -> Array:
    padded = np.pad(x, ((0, -len(x) % 16), (0, 0), (halo, halo), (halo, halo)))
    return np.ascontiguousarray(np.moveaxis(padded.reshape(-1, 16, *padded.shape[1:]), 1, -1))


def from_lanes(lanes: Array, case: Case, halo: int) -> Array:
    """The images; asserts that all around them is zero."""
    whole = np.moveaxis(lanes, -1, 1).reshape(-1, *lanes.shape[1:-1])
    images = whole[: case.batch, :, halo : halo + case.height, halo : halo + case.width]
    assert to_lanes(images, halo).tobytes() == lanes.tobytes(), "halo and unused lanes must be +0"
    return images


@dataclass
class Data:
    """Random inputs of a case, in torch's layout."""

    case: Case
    seed: int = 3
    offset: float = 0.5

    def __post_init__(self) -> None:
        rng, case = np.random.default_rng(self.seed), self.case
        shape = (case.batch, case.channels, case.height, case.width)
        self.x, self.residual, self.dy = rng.standard_normal((3, *shape)).astype(np.float32)
        self.x += np.float32(self.offset)
        self.gamma, self.beta, self.mean = rng.standard_normal((3, case.channels)).astype(np.float32)
        self.var = rng.uniform(0.5, 2, case.channels).astype(np.float32)
        self.n = np.array([case.batch], np.int64)

    def forward_inputs(self) -> list[Array | None]:
        in_halo, _, residual_halo = self.case.halos
        residual = to_lanes(self.residual, residual_halo) if self.case.residual else None
        return [to_lanes(self.x, in_halo), self.gamma, self.beta, self.mean, self.var, self.n, residual]

    def forward_options(self) -> dict[str, Any]:
        in_halo, out_halo, _ = self.case.halos
        floats = {"epsilon": EPSILON, "momentum": MOMENTUM}
        return {"relu": int(self.case.relu), "pad_in": in_halo, "pad_out": out_halo, **floats}


@dataclass
class Torch:
    """The same in torch, in double precision."""

    data: Data

    def __post_init__(self) -> None:
        d = self.data
        self.norm = torch.nn.BatchNorm2d(d.case.channels, eps=EPSILON, momentum=MOMENTUM, dtype=torch.float64)
        with torch.no_grad():
            for name, value in (
                ("weight", d.gamma),
                ("bias", d.beta),
                ("running_mean", d.mean),
                ("running_var", d.var),
            ):
                getattr(self.norm, name).copy_(torch.from_numpy(value))
        self.x = torch.from_numpy(d.x).double().requires_grad_()
        self.residual = torch.from_numpy(d.residual).double().requires_grad_()
        self.y = self.norm(self.x)
        if d.case.residual:
            self.y = self.y + self.residual
        if d.case.relu:
            self.y = torch.relu(self.y)


def assert_close(actual: Array, expected: torch.Tensor | Array | None, tolerance: float = TOLERANCE) -> None:
    assert expected is not None
    reference = expected.detach().numpy() if isinstance(expected, torch.Tensor) else expected
    assert np.abs(actual - reference).max() <= tolerance * max(1.0, np.abs(reference).max())


def forward(run_node: RunNode, data: Data, threads: int = 1) -> list[Array]:
    outputs = [True] * 5 + [data.case.relu]
    return run_node("BatchNormAct", data.forward_inputs(), outputs, threads, **data.forward_options())


def backward(run_node: RunNode, data: Data, saved: list[Array], threads: int = 1) -> list[Array]:
    """dx with the halo of x plus one, dgamma, dbeta and, for a residual, its gradient with the residual's halo."""
    case = data.case
    inputs = [to_lanes(data.dy, case.halos[1]), to_lanes(data.x, case.halos[0]), data.gamma, *saved[1:3], data.n]
    options = {"pad_in": case.halos[0], "pad_out": case.halos[0] + 1, "pad_residual": case.halos[2]}
    positive = saved[5] if case.relu else None
    return run_node("BatchNormActGrad", [*inputs, positive], [True] * 3 + [case.residual], threads, **options)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_output_and_statistics_agree_with_torch(run_node: RunNode, case: Case) -> None:
    data = Data(case)
    reference = Torch(data)
    y, mean, inv_std, new_mean, new_var = forward(run_node, data)[:5]
    x = data.x.astype(np.float64)
    assert_close(from_lanes(y, case, case.halos[1]), reference.y)
    assert_close(mean, x.mean((0, 2, 3)))
    assert_close(inv_std, 1 / np.sqrt(x.var((0, 2, 3)) + EPSILON))
    assert_close(new_mean, reference.norm.running_mean)
    assert_close(new_var, reference.norm.running_var)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_agree_with_torch(run_node: RunNode, case: Case) -> None:
    data = Data(case)
    reference = Torch(data)
    reference.y.backward(torch.from_numpy(data.dy).double())
    dx, dgamma, dbeta, *dresidual = backward(run_node, data, forward(run_node, data))
    assert_close(from_lanes(dx, case, case.halos[0] + 1), reference.x.grad, 1e-5)
    assert_close(dgamma, reference.norm.weight.grad)
    assert_close(dbeta, reference.norm.bias.grad)
    if case.residual:
        assert_close(from_lanes(dresidual[0], case, case.halos[2]), reference.residual.grad, 0.0)


def test_positive_has_one_bit_for_every_element(run_node: RunNode) -> None:
    data = Data(Case(17, 4, 3, 5, relu=True, residual=False))
    y, *_, positive = forward(run_node, data)
    bits = np.unpackbits(positive, axis=-1, bitorder="little")
    assert positive.shape == (2, 4, 3, 5, 2)
    assert np.array_equal(bits == 1, y[:, :, 1:-1, 1:-1] > 0)


def test_variance_far_from_zero_keeps_its_digits(run_node: RunNode) -> None:
    """Mean of squares minus squared mean loses everything here in float; the inputs themselves hold 4 digits."""
    data = Data(Case(16, 4, 16, 16, relu=False, residual=False), offset=1000.0)
    _, mean, inv_std, *_ = forward(run_node, data)
    x = data.x.astype(np.float64)
    assert np.abs(mean / x.mean((0, 2, 3)) - 1).max() < 1e-7
    assert np.abs(inv_std * np.sqrt(x.var((0, 2, 3)) + EPSILON) - 1).max() < 1e-6


def test_a_constant_channel_gives_finite_results(run_node: RunNode) -> None:
    """The output of a layer whose mask became empty."""
    data = Data(Case(16, 3, 4, 4, relu=True, residual=False))
    data.x[:] = np.array([0.0, 3.7, -1e4], np.float32).reshape(1, 3, 1, 1)
    saved = forward(run_node, data)
    dx, dgamma, _ = backward(run_node, data, saved)
    assert np.allclose(saved[2], 1 / np.sqrt(EPSILON), rtol=1e-2)
    assert_close(from_lanes(saved[0], data.case, 1)[0, :, 0, 0], np.maximum(data.beta, 0), 1e-3)
    assert np.isfinite(dx).all()
    assert np.abs(dgamma).max() < 1e-3


def test_a_single_value_has_a_running_variance_of_zero_to_blend_in(run_node: RunNode) -> None:
    data = Data(Case(1, 3, 1, 1, relu=False, residual=False))
    y, _, inv_std, new_mean, new_var = forward(run_node, data)
    assert_close(y[0, :, 1, 1, 0], data.beta)
    assert np.allclose(inv_std, 1 / np.sqrt(EPSILON))
    assert_close(new_mean, 0.9 * data.mean + 0.1 * data.x.ravel())
    assert_close(new_var, 0.9 * data.var)


def test_nan_is_not_hidden_by_relu(run_node: RunNode) -> None:
    data = Data(Case(3, 2, 2, 2, relu=True, residual=False))
    data.x[1, 1, 0, 0] = np.nan
    y = from_lanes(forward(run_node, data)[0], data.case, 1)
    assert np.isnan(y[:, 1]).all()
    assert np.isfinite(y[:, 0]).all()


@pytest.mark.parametrize("threads", [2, 3])
def test_thread_count_does_not_change_a_bit(run_node: RunNode, threads: int) -> None:
    data = Data(Case(33, 24, 32, 32, relu=True, residual=True))
    one, many = forward(run_node, data), forward(run_node, data, threads)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(one, many, strict=True))
    one_back, many_back = backward(run_node, data, one), backward(run_node, data, one, threads)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(one_back, many_back, strict=True))


def test_bad_input_is_refused_with_shape_and_limit(run_node: RunNode) -> None:
    data = Data(Case(16, 4, 3, 3, relu=True, residual=True))
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
