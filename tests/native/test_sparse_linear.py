"""Sparse matrices times tokens at the edges: no tokens, ties, NaN, and inputs that do not fit."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fixtures.op_cases.case import Array
from fixtures.op_cases.linear import MASKED, PLAIN, Linear, data_of, pruned, saved

RunNode = Callable[..., list[Array]]

GOOD = Linear(4, 6, 0.5, (3,))
SIZE = {"rows": GOOD.rows, "columns": GOOD.columns}


def plan_of(run_node: RunNode, layer: Linear) -> Array:
    plan, order = run_node("LinearPlan", [data_of(layer).index], 2, rows=layer.rows, columns=layer.columns)
    assert np.array_equal(order, np.arange(len(order))), "values follow the index"
    return plan


def good_inputs(run_node: RunNode) -> dict[str, Array]:
    data = data_of(GOOD)
    return {
        "plan": plan_of(run_node, GOOD),
        "theta": data.weight.reshape(-1)[data.index],
        "bias": data.bias,
        "x": data.x,
        "dy": data.dy,
        "saved": saved(data.x, channels_last=True),
        "values": np.ones(data.index.size, np.float32),
        "tau": np.array([0.5], np.float32),
        "w": data.weight,
    }


INPUTS_OF = {
    "SparseLinear": ["x", "theta", "plan", "bias"],
    "SparseLinearGradInput": ["dy", "theta", "plan"],
    "SparseLinearGradWeight": ["saved", "dy", "plan"],
    "SaveInput": ["x", "plan", "values", "tau"],
    "LoadInput": ["saved"],
    "Densify": ["theta", "plan"],
    "Sparsify": ["w", "plan"],
}


def no_magic(array: Array) -> Array:
    changed = array.copy()
    changed[0] = 1
    return changed


@pytest.mark.parametrize("op", [op for op, inputs in INPUTS_OF.items() if "plan" in inputs])
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (no_magic, r"plan of shape \[\d+\] is not the output of LinearPlan"),
        (lambda p: p[:3], r"plan of shape \[3\] is not the output of LinearPlan"),
        (lambda p: p[:0], r"plan of shape \[0\] is not the output of LinearPlan"),
        (lambda p: p[:-1], r"plan has \d+ values, must have \d+ as its header says"),
    ],
)
def test_every_op_refuses_what_is_not_a_plan(
    run_node: RunNode, op: str, change: Callable[[Array], Array], complaint: str
) -> None:
    inputs = good_inputs(run_node)
    inputs["plan"] = np.ascontiguousarray(change(inputs["plan"]))
    with pytest.raises(Exception, match=f"{op}: {complaint}"):
        run_node(op, [inputs[name] for name in INPUTS_OF[op]])


@pytest.mark.parametrize(
    ("op", "bad", "change", "complaint"),
    [
        ("SparseLinear", "theta", lambda t: t[:-1], r"theta has shape \[11\], the plan is for \[12\]"),
        ("SparseLinear", "x", lambda x: x[:, :5], r"x has shape \[3,5\], the plan is for \[...,6\]"),
        ("SparseLinear", "x", lambda x: x[0, 0], r"x has shape \[\], the plan is for \[...,6\]"),
        ("SparseLinear", "bias", lambda b: b[:3], r"bias has shape \[3\], the plan is for \[4\]"),
        ("SparseLinearGradInput", "dy", lambda d: d[:, :3], r"dy has shape \[3,3\], the plan is for \[...,4\]"),
        ("SparseLinearGradInput", "theta", lambda t: t[None], r"theta has shape \[1,12\], the plan is for \[12\]"),
        (
            "SparseLinearGradWeight",
            "dy",
            lambda d: d[:2],
            r"dy has shape \[2,4\], must be \[3,4\] for a saved input of",
        ),
        (
            "SparseLinearGradWeight",
            "saved",
            lambda s: s[:100],
            r"saved of shape \[100\] is not the output of SaveInput",
        ),
        ("SparseLinearGradWeight", "saved", lambda s: s[:-4], r"saved has \d+ bytes, must have \d+ as its header says"),
        ("LoadInput", "saved", no_magic, r"saved of shape \[\d+\] is not the output of SaveInput"),
        ("SaveInput", "x", lambda x: x[:, :5], r"x has shape \[3,5\], the plan is for \[...,6\]"),
        ("SaveInput", "x", lambda x: x.reshape(3, *[1] * 7, 6), r"x has shape .*, must have at most 8 dimensions"),
        ("SaveInput", "values", lambda v: v[:3], r"values has shape \[3\], the plan is for \[12\]"),
        ("SaveInput", "tau", lambda t: t[:0], r"tau_before has shape \[0\], must have \[1\]"),
        ("Densify", "theta", lambda t: t[:0], r"theta has shape \[0\], the plan is for \[12\]"),
        ("Sparsify", "w", lambda w: w[:3], r"w has shape \[3,6\], the plan is for 24 values, \[4,6\]"),
    ],
)
def test_inputs_that_do_not_fit_the_plan_are_refused(
    run_node: RunNode, op: str, bad: str, change: Callable[[Array], Array], complaint: str
) -> None:
    inputs = good_inputs(run_node)
    inputs[bad] = np.asarray(change(inputs[bad]), order="C")  # ascontiguousarray would turn a scalar into a vector
    with pytest.raises(Exception, match=f"{op}: {complaint}"):
        run_node(op, [inputs[name] for name in INPUTS_OF[op]])


def test_a_saved_input_of_another_layer_is_refused(run_node: RunNode) -> None:
    inputs = good_inputs(run_node)
    other = saved(np.ones((3, 7), np.float32), channels_last=True)
    with pytest.raises(Exception, match=r"saved has shape \[3,7\], the plan is for \[...,6\]"):
        run_node("SparseLinearGradWeight", [other, inputs["dy"], inputs["plan"]])


def test_an_image_needs_its_channels_in_the_second_place(run_node: RunNode) -> None:
    inputs = good_inputs(run_node)
    with pytest.raises(Exception, match=r"SparseLinear: x has shape \[6\], the plan is for \[N,6,...\]"):
        run_node("SparseLinear", [inputs["x"][0], inputs["theta"], inputs["plan"]], channels_last=0)


@pytest.mark.parametrize(
    ("index", "complaint"),
    [
        ([3, 3], r"index\[1\] is 3 after 3, must ascend and stay below 24"),
        ([5, 4], r"index\[1\] is 4 after 5"),
        ([-1], r"index\[0\] is -1 after -1"),
        ([0, 24], r"index\[1\] is 24 after 0, must ascend and stay below 24"),
        ([[1]], r"index has shape \[1,1\], must be \[nnz\]"),
    ],
)
def test_positions_that_are_none_are_refused(run_node: RunNode, index: list[Any], complaint: str) -> None:
    with pytest.raises(Exception, match=f"LinearPlan: {complaint}"):
        run_node("LinearPlan", [np.array(index, np.int32)], 2, **SIZE)


@pytest.mark.parametrize(
    ("size", "complaint"),
    [
        ({"rows": 0}, "attribute rows is 0, must be from 1 to"),
        (
            {"rows": 1 << 17, "columns": 1 << 17},
            r"a matrix of \[131072,131072\] has 17179869184 values, must be below 2",
        ),
    ],
)
def test_a_matrix_that_the_plan_cannot_number_is_refused(
    run_node: RunNode, size: dict[str, int], complaint: str
) -> None:
    with pytest.raises(Exception, match=f"LinearPlan: {complaint}"):
        run_node("LinearPlan", [np.zeros(0, np.int32)], 2, **{**SIZE, **size})


# ---- no tokens, no values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "channels_last"), [((0, 6), 1), ((2, 0, 6), 1), ((0, 6, 3), 0), ((2, 6, 0), 0)])
def test_a_batch_of_nothing_gives_nothing(run_node: RunNode, shape: tuple[int, ...], channels_last: int) -> None:
    inputs = good_inputs(run_node)
    axis = -1 if channels_last else 1
    out = tuple(4 if i == axis % len(shape) else n for i, n in enumerate(shape))
    x, dy = np.zeros(shape, np.float32), np.zeros(out, np.float32)
    layout = {"channels_last": channels_last}
    (y,) = run_node("SparseLinear", [x, inputs["theta"], inputs["plan"]], **layout)
    (dx,) = run_node("SparseLinearGradInput", [dy, inputs["theta"], inputs["plan"]], **layout)
    (kept,) = run_node("SaveInput", [x, inputs["plan"]], **layout)
    (loaded,) = run_node("LoadInput", [kept])
    (dtheta,) = run_node("SparseLinearGradWeight", [kept, dy, inputs["plan"]])
    assert y.shape == out
    assert dx.shape == loaded.shape == shape
    assert dtheta.shape == inputs["theta"].shape
    assert not dtheta.any()


def test_a_pruned_weight_hides_nan(run_node: RunNode) -> None:
    plan, _ = run_node("LinearPlan", [np.array([1], np.int32)], 2, rows=1, columns=2)
    x = np.array([[np.nan, 3]], np.float32)
    (y,) = run_node("SparseLinear", [x, np.array([2], np.float32), plan])
    assert y == 6


# ---- pruning ---------------------------------------------------------------------------------------------------------


def encoding(bytes_saved: Array) -> int:
    return int(bytes_saved[4:8].view(np.uint32)[0])


@pytest.mark.parametrize("shape", [(16, 65, 40), (7,), (33, 17), (5000,)])
@pytest.mark.parametrize("nonzeros", [0, 1, 7, 50, 99, 100])
def test_what_is_saved_is_what_sorting_gives(run_node: RunNode, shape: tuple[int, ...], nonzeros: int) -> None:
    columns, rows = shape[-1], 100
    index = np.arange(nonzeros * columns, dtype=np.int32)
    plan, _ = run_node("LinearPlan", [index], 2, rows=rows, columns=columns)
    x = np.random.default_rng(1).choice(np.array([-2, -1, 0, 1, 3, 5], np.float32), shape)  # many ties
    wanted = np.where(pruned(x, nonzeros, rows) == 0, np.float32(0), pruned(x, nonzeros, rows))
    (found,) = run_node("SaveInput", [x, plan])
    assert found.tobytes() == saved(wanted, channels_last=True).tobytes()


def test_nan_is_never_dropped(run_node: RunNode) -> None:
    x = np.random.default_rng(2).standard_normal((40, 100)).astype(np.float32)
    x[3, :90] = np.nan
    plan, _ = run_node("LinearPlan", [np.arange(1, dtype=np.int32)], 2, rows=10, columns=100)
    (found,) = run_node("SaveInput", [x, plan])
    (loaded,) = run_node("LoadInput", [found])
    assert np.array_equal(loaded, np.where(np.isnan(x), x, 0), equal_nan=True)


def test_the_node_and_the_values_can_set_the_share(run_node: RunNode) -> None:
    x = np.random.default_rng(3).standard_normal((30, 20)).astype(np.float32)
    plan, _ = run_node("LinearPlan", [np.arange(200, dtype=np.int32)], 2, rows=10, columns=20)
    values = np.zeros(200, np.float32)
    values[:30] = 1
    for inputs, share, attributes in (
        ([x, plan, values], (30, 200), {}),
        ([x, plan], (1, 20), {"kept": 1, "of": 20}),
        ([x, plan, np.zeros(200, np.float32)], (1, 50), {"least": 200}),
    ):
        (found,) = run_node("SaveInput", inputs, **attributes)
        assert found.tobytes() == saved(pruned(x, *share), channels_last=True).tobytes()


def test_a_threshold_of_an_earlier_step_is_taken_over_and_handed_on(run_node: RunNode) -> None:
    x = np.random.default_rng(4).standard_normal((30, 20)).astype(np.float32)
    plan, _ = run_node("LinearPlan", [np.arange(20, dtype=np.int32)], 2, rows=10, columns=20)
    first, tau = run_node("SaveInput", [x, plan, None, np.array([-1], np.float32)], 2)
    again, after = run_node("SaveInput", [x, plan, None, tau], 2)
    assert tau == np.sort(np.abs(x), axis=None)[-60]
    assert after == tau
    assert first.tobytes() == again.tobytes()


def test_the_smaller_encoding_is_taken(run_node: RunNode) -> None:
    x = np.random.default_rng(5).standard_normal((64, 64)).astype(np.float32)
    plan, _ = run_node("LinearPlan", [np.arange(64, dtype=np.int32)], 2, rows=10, columns=64)
    (small,) = run_node("SaveInput", [x, plan])
    (whole,) = run_node("SaveInput", [x, plan], prune=0)
    assert (encoding(small), encoding(whole)) == (MASKED, PLAIN)
    assert len(small) < len(whole) / 7
