"""Sparse convolution with inputs that do not fit: a sentence, never a crash."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fixtures.op_cases.case import Array, to_lanes
from fixtures.op_cases.layers import SAVED_MASKED, SAVED_PLAIN, Layer, dense, saved

RunNode = Callable[..., list[Array]]

GOOD = Layer(4, 3, 3, 1, 8, 8, 0.5)


def good_inputs(run_node: RunNode) -> dict[str, Array]:
    data = dense(GOOD)
    plan, order = run_node("SparsePlan", [data.kept], outputs=2, **GOOD.attributes)
    return {
        "plan": plan,
        "theta": data.weight.reshape(-1)[data.kept][order],
        "x": to_lanes(data.x, GOOD.halo),
        "dy": to_lanes(data.dy, GOOD.halo),
        "saved": saved(data.x_saved, GOOD.halo, SAVED_MASKED),
        "residual": to_lanes(data.residual, GOOD.halo),
    }


INPUTS_OF = {
    "SparseConv": ["x", "theta", "plan"],
    "SparseConvGradInput": ["dy", "theta", "plan", "residual"],
    "SparseConvGradWeight": ["saved", "dy", "plan"],
}


def no_magic(plan: Array) -> Array:
    return np.where(np.arange(len(plan)) == 0, 1, plan).astype(np.int32)


@pytest.mark.parametrize(
    ("op", "bad", "change", "complaint"),
    [
        ("SparseConv", "plan", no_magic, r"plan of shape \[\d+\] is not the output of SparsePlan"),
        ("SparseConv", "plan", lambda p: p[:3], r"plan of shape \[3\] is not the output of SparsePlan"),
        ("SparseConv", "plan", lambda p: p[:0], r"plan of shape \[0\] is not the output of SparsePlan"),
        ("SparseConv", "plan", lambda p: p[:-1], r"plan has \d+ values, must have \d+"),
        ("SparseConv", "theta", lambda t: t[:-1], r"theta has shape \[53\], the plan is for \[54\]"),
        ("SparseConv", "theta", lambda t: t[None], r"theta has shape \[1,54\], the plan is for \[54\]"),
        ("SparseConv", "x", lambda x: x[:, :2], r"x has shape \[1,2,10,10,16\], the plan is for \[1,3,10,10,16\]"),
        ("SparseConv", "x", lambda x: x[:, :, 1:], r"x has shape \[1,3,9,10,16\], the plan is for"),
        ("SparseConv", "x", lambda x: x[0], r"x has shape \[3,10,10,16\], the plan is for"),
        ("SparseConv", "x", lambda x: x[:0], r"x has shape \[0,3,10,10,16\], the plan is for \[1,3,10,10,16\]"),
        ("SparseConvGradInput", "plan", no_magic, r"plan of shape \[\d+\] is not the output of SparsePlan"),
        ("SparseConvGradInput", "dy", lambda d: d[..., :8], r"dy has shape \[1,4,10,10,8\], the plan is for"),
        ("SparseConvGradInput", "theta", lambda t: t[:0], r"theta has shape \[0\], the plan is for \[54\]"),
        ("SparseConvGradInput", "residual", lambda r: r[:, :1], r"accumulate has shape \[1,1,10,10,16\], the plan"),
        ("SparseConvGradInput", "residual", lambda r: r[:, :, 1:-1, 1:-1], r"accumulate has shape \[1,3,8,8,16\]"),
        ("SparseConvGradWeight", "plan", no_magic, r"plan of shape \[\d+\] is not the output of SparsePlan"),
        ("SparseConvGradWeight", "saved", lambda s: s[:40], r"saved of shape \[40\] is not the output of Save"),
        ("SparseConvGradWeight", "saved", lambda s: s[:-1], r"saved has \d+ bytes, must have \d+"),
        ("SparseConvGradWeight", "dy", lambda d: np.repeat(d, 2, 0), r"saved holds 1 groups of 16 images, dy has 2"),
    ],
)
def test_inputs_that_do_not_fit_the_plan_are_refused(
    run_node: RunNode, op: str, bad: str, change: Callable[[Array], Array], complaint: str
) -> None:
    inputs = good_inputs(run_node)
    inputs[bad] = np.ascontiguousarray(change(inputs[bad]))
    with pytest.raises(Exception, match=f"{op}: {complaint}"):
        run_node(op, [inputs[name] for name in INPUTS_OF[op]])


def test_an_activation_of_another_layer_is_refused(run_node: RunNode) -> None:
    inputs = good_inputs(run_node)
    other = saved(np.ones((16, 2, 8, 8), np.float32), GOOD.halo, SAVED_PLAIN)
    with pytest.raises(Exception, match=r"saved holds channels, height, width, halo \[2,8,8,1\], .* \[3,8,8,1\]"):
        run_node("SparseConvGradWeight", [other, inputs["dy"], inputs["plan"]])


def test_a_halo_beyond_the_limit_is_refused(run_node: RunNode) -> None:
    inputs = good_inputs(run_node)
    with pytest.raises(Exception, match=r"SparseConv: attribute pad_out is 17, must be from -1 to 16"):
        run_node("SparseConv", [inputs[name] for name in INPUTS_OF["SparseConv"]], pad_out=17)


def test_a_plan_without_the_gradient_of_the_input_refuses_to_give_one(run_node: RunNode) -> None:
    inputs = good_inputs(run_node)
    (plan, _) = run_node("SparsePlan", [dense(GOOD).kept], outputs=2, **{**GOOD.attributes, "grad_input": 0})
    with pytest.raises(Exception, match=r"SparseConvGradInput: the plan was made with grad_input = 0"):
        run_node("SparseConvGradInput", [inputs["dy"], inputs["theta"], plan])


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"stride": 3}, "attribute stride is 3, must be from 1 to 2"),
        ({"groups": 5}, "groups is 5, must divide oc"),
        ({"kernel_h": 0}, "attribute kernel_h is 0, must be from 1 to"),
        ({"pad_in": 0}, "pad_in is 0, must be at least 1 for the rows of the convolution"),
        ({"pad_out": 0}, "pad_out is 0, must be at least 1 for the rows of the input's gradient"),
        ({"kernel_h": 11, "in_h": 4}, "a kernel of 11x3 does not fit into a plane of 4x8 with pad 1"),
        ({"ic": 60000, "in_h": 1000, "in_w": 1000}, "has a tensor of .* values, must be below 2"),
    ],
)
def test_a_layer_that_the_kernels_cannot_serve_is_refused(
    run_node: RunNode, changes: dict[str, int], complaint: str
) -> None:
    with pytest.raises(Exception, match=f"SparsePlan: .*{complaint}"):
        run_node("SparsePlan", [np.zeros(1, np.int32)], outputs=2, **{**GOOD.attributes, **changes})


@pytest.mark.parametrize(
    ("index", "complaint"),
    [
        ([3, 3], r"index\[1\] is 3 after 3, must ascend and stay below 108"),
        ([5, 4], r"index\[1\] is 4 after 5"),
        ([-1], r"index\[0\] is -1 after -1"),
        ([0, 108], r"index\[1\] is 108 after 0, must ascend and stay below 108"),
        ([[1]], r"index has shape \[1,1\], must be \[nnz\]"),
    ],
)
def test_positions_that_are_none_are_refused(run_node: RunNode, index: list[Any], complaint: str) -> None:
    with pytest.raises(Exception, match=f"SparsePlan: {complaint}"):
        run_node("SparsePlan", [np.array(index, np.int32)], outputs=2, **GOOD.attributes)
