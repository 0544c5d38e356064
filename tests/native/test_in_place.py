"""Gradients reuse the memory of a tensor they replace, if the runtime knows that the shapes are equal."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fixtures.op_cases.case import Array, to_lanes
from fixtures.op_cases.layers import Layer, dense
from onnx import TensorProto, helper

from sparsyedge.edge.native import OP_DOMAIN

ModelSession = Callable[..., Any]
RunNode = Callable[..., list[Array]]

# A halo of marks shows whose memory a result has: ops write a halo of zeros in their own memory, and leave it alone in
# memory they reuse.
MARK = np.float32(77)


def marked(lanes: Array, halo: int) -> Array:
    whole = np.full_like(lanes, MARK)
    whole[:, :, halo:-halo, halo:-halo] = lanes[:, :, halo:-halo, halo:-halo]
    return whole


def graph(node: Any, inputs: dict[str, Array], *, replaced: str, result: str, known: bool) -> bytes:
    """Puts a node between two others, so the runtime owns the replaced tensor, not the caller."""
    names = ["given" if name == replaced else name for name in inputs]
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), None)
        for name, array in zip(names, inputs.values(), strict=True)
    ]
    nodes = [
        helper.make_node("Neg", ["given"], ["negative"]),
        helper.make_node("Neg", ["negative"], [replaced]),
        node,
        helper.make_node("Neg", [result], ["flipped"]),
        helper.make_node("Neg", ["flipped"], ["output"]),
    ]
    body = helper.make_graph(nodes, "in_place", values, [helper.make_empty_tensor_value_info("output")])
    if known:
        shape = list(inputs[replaced].shape)
        body.value_info.extend(helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in (replaced, result))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(OP_DOMAIN, 1)]
    serialised: bytes = helper.make_model(body, opset_imports=opsets, ir_version=9).SerializeToString()
    return serialised


def both_ways(
    model_session: ModelSession, node: Any, inputs: dict[str, Array], *, replaced: str, result: str
) -> tuple[Array, Array]:
    """The result in the memory of the tensor it replaces, and in its own."""
    fed = {"given" if name == replaced else name: array for name, array in inputs.items()}
    first, second = (
        model_session(graph(node, inputs, replaced=replaced, result=result, known=known)).run(None, fed)[0]
        for known in (True, False)
    )
    return first, second


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (1, 2)])
def test_the_gradient_of_the_input_is_added_in_place(
    model_session: ModelSession, run_node: RunNode, kernel: int, stride: int
) -> None:
    layer = Layer(6, 5, kernel, stride, 9, 10, 0.5, more_halo=1)
    data = dense(layer)
    plan, order = run_node("SparsePlan", [data.kept], outputs=2, **layer.attributes)
    inputs = {
        "dy": to_lanes(data.dy, layer.halo),
        "theta": data.weight.reshape(-1)[data.kept][order],
        "plan": plan,
        "accumulate": marked(to_lanes(data.residual, layer.halo), layer.halo),
    }
    node = helper.make_node("SparseConvGradInput", list(inputs), ["dx"], domain=OP_DOMAIN)
    shared, own = both_ways(model_session, node, inputs, replaced="accumulate", result="dx")
    assert (shared[:, :, 0] == MARK).all(), "the runtime gave it other memory"
    assert not own[:, :, 0].any()
    inside = np.s_[:, :, layer.halo : -layer.halo, layer.halo : -layer.halo]
    assert shared[inside].tobytes() == own[inside].tobytes()


@pytest.mark.parametrize("residual", [False, True])
def test_the_gradient_of_a_norm_replaces_that_of_its_output(model_session: ModelSession, residual: bool) -> None:
    rng = np.random.default_rng(2)
    dy, x = rng.standard_normal((2, 16, 4, 5, 6)).astype(np.float32)
    inputs = {
        "dy": marked(to_lanes(dy, 1), 1),
        "x": to_lanes(x, 0),
        "gamma": rng.standard_normal(4).astype(np.float32),
        "mean": rng.standard_normal(4).astype(np.float32),
        "inv_std": np.ones(4, np.float32),
        "batch": np.array([16]),
        "positive": rng.integers(0, 256, (1, 4, 5, 6, 2), dtype=np.uint8),
    }
    outputs = ["dx", "dgamma", "dbeta", *(["dresidual"] if residual else [])]
    node = helper.make_node("BatchNormActGrad", list(inputs), outputs, domain=OP_DOMAIN, pad_out=1)
    shared, own = both_ways(model_session, node, inputs, replaced="dy", result="dx")
    assert (shared[:, :, 0] == MARK).all(), "the runtime gave it other memory"
    assert not own[:, :, 0].any()
    assert shared[:, :, 1:-1, 1:-1].tobytes() == own[:, :, 1:-1, 1:-1].tobytes()
