"""Optimizers at the edges: zeros that stay, memory that is shared, gradients that overflow, bad values."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

Array = npt.NDArray[Any]
RunNode = Callable[..., list[Array]]

MOMENTUM = {"momentum": 0.9, "nesterov": 1}
ADAM = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}


def one(value: float) -> Array:
    return np.array([value], np.float32)


def step(run_node: RunNode, op: str, w: Array, dw: Array, *memory: Array, **changes: float) -> list[Array]:
    values = {"scale": 1.0, "decay": 0.1, "lr": 0.5} | ({"steps": 1.0} if op == "AdamWStep" else {}) | changes
    attributes = ADAM if op == "AdamWStep" else MOMENTUM
    return run_node(op, [w, dw, *memory, *map(one, values.values())], 1 + len(memory), **attributes)


@pytest.mark.parametrize(("op", "memories"), [("MomentumStep", 1), ("AdamWStep", 2)])
def test_a_zero_without_gradient_and_memory_stays_exactly_zero(run_node: RunNode, op: str, memories: int) -> None:
    zeros = np.zeros(40, np.float32)
    for result in step(run_node, op, zeros, zeros, *[zeros] * memories):
        assert not result.any()


@pytest.mark.parametrize(("op", "memories"), [("MomentumStep", 1), ("AdamWStep", 2)])
def test_an_empty_layer_takes_an_empty_step(run_node: RunNode, op: str, memories: int) -> None:
    empty = np.zeros(0, np.float32)
    assert [result.shape for result in step(run_node, op, empty, empty, *[empty] * memories)] == [(0,)] * (1 + memories)


def test_the_first_step_of_adamw_moves_every_weight_by_the_rate(run_node: RunNode) -> None:
    rng = np.random.default_rng(0)
    w, dw = rng.standard_normal((2, 1000)).astype(np.float32)
    zeros = np.zeros_like(w)
    new, _, _ = step(run_node, "AdamWStep", w, dw, zeros, zeros, decay=0.0, lr=0.01)
    np.testing.assert_allclose(new - w, -0.01 * np.sign(dw), atol=1e-6)


def test_a_norm_that_overflows_its_square_is_still_a_norm(run_node: RunNode) -> None:
    (norm,) = run_node("GradientNorm", [np.full(4, 1e30, np.float32)])
    assert norm[0] == np.float32(2e30)
    (scale,) = run_node("ClipScale", [norm], max_norm=1.0)
    assert scale[0] == pytest.approx(5e-31)


def test_gradients_below_the_norm_stay_as_they_are_and_nan_is_not_hidden(run_node: RunNode) -> None:
    assert run_node("ClipScale", [one(0.5)], max_norm=1.0)[0] == 1
    assert run_node("ClipScale", [np.zeros(3, np.float32)], max_norm=1.0)[0] == 1
    assert np.isnan(run_node("ClipScale", [one(np.nan)], max_norm=1.0)[0])


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"scale": -1.0}, "scale is -1, must be at least 0"),
        ({"decay": -1.0}, "weight_decay is -1, must be finite and at least 0"),
        ({"lr": np.inf}, "lr is inf, must be finite and at least 0"),
        ({"steps": 0.0}, "steps is 0, must be at least 1"),
    ],
)
def test_bad_values_are_refused_by_name(run_node: RunNode, changes: dict[str, float], complaint: str) -> None:
    w = np.ones(4, np.float32)
    with pytest.raises(Exception, match=f"AdamWStep: {complaint}"):
        step(run_node, "AdamWStep", w, w, w, w, **changes)


def test_a_memory_of_another_shape_is_refused(run_node: RunNode) -> None:
    w = np.ones(4, np.float32)
    with pytest.raises(Exception, match=r"MomentumStep: m has shape \[3\] and w has shape \[4\]; they must be equal"):
        step(run_node, "MomentumStep", w, w, w[:3])


@pytest.mark.parametrize("attributes", [{"beta1": 1.0}, {"beta2": -0.1}, {"epsilon": 0.0}])
def test_attributes_without_meaning_are_refused_when_the_graph_loads(
    run_node: RunNode, attributes: dict[str, float]
) -> None:
    w = np.ones(4, np.float32)
    with pytest.raises(Exception, match=f"AdamWStep: {next(iter(attributes))} is .*, must be"):
        run_node("AdamWStep", [w] * 4 + [one(1.0)] * 4, 3, **(ADAM | attributes))


@pytest.mark.parametrize("mix", [-0.1, 1.1, np.nan])
def test_a_share_without_meaning_is_refused(run_node: RunNode, mix: float) -> None:
    logits, labels = np.zeros((1, 3, 1, 1, 16), np.float32), np.zeros(5, np.int64)
    with pytest.raises(Exception, match=r"SoftmaxLossMixed: mix is .*, must be from 0 to 1"):
        run_node("SoftmaxLossMixed", [logits, labels, labels, one(mix)], 2)
    with pytest.raises(Exception, match=r"SoftmaxLossMixed: labels_mixed\[0\] is 3, must be from 0 to 2"):
        run_node("SoftmaxLossMixed", [logits, labels, labels + 3, one(0.5)], 2)
