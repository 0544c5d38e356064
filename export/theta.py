"""Inserts the nodes that turn weights into theta: one op of ours, or a small graph of standard ops."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from sparsyedge.edge.model.methods import Method
from sparsyedge.edge.model.reparametrise import NORM_FLOOR, exponent_name
from sparsyedge.edge.native import OP_DOMAIN
from sparsyedge.edge.tensors import FloatArray
from sparsyedge.export.rewrite import BETA, WEIGHT_DECAY, import_domain, redirect

__all__ = ["insert_reparametrisation"]

FLOOR = "sparsyedge.norm_floor"


def insert_reparametrisation(
    model: onnx.ModelProto,
    *,
    trainable: Iterable[str],
    prunable: Iterable[str],
    method: Method,
    exponents: Mapping[str, FloatArray],
) -> None:
    """Turn every prunable weight into theta and pass every other trainable parameter through Decay.

    SGDOptimizerV2 has no weight decay, so the gradients of PowerProp and Decay add it. `exponents` belong to the
    initial weights, for methods with one per layer; no step changes them.
    """
    graph = model.graph
    weights = set(prunable)
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    renamed: dict[str, str] = {}
    for name in trainable:
        if name not in weights:
            renamed[name] = f"{name}.decayed"
            nodes.append(_ours("Decay", [name, WEIGHT_DECAY], renamed[name]))
        elif method.reparametrisation == "spectral":
            renamed[name] = f"{name}.theta"
            nodes += _spectral(name, shapes[name], graph)
        else:
            renamed[name] = f"{name}.theta"
            beta = exponent_name(name) if exponent_name(name) in exponents else BETA
            nodes.append(_ours("PowerProp", [name, beta, WEIGHT_DECAY], renamed[name]))
    for node in graph.node:
        redirect(node, renamed)
    stock = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes, *stock])
    _add_constants(graph, {name: np.asarray(value) for name, value in exponents.items()})
    _add_constants(
        graph,
        {
            BETA: np.array([method.beta], dtype=np.float32),
            WEIGHT_DECAY: np.array([method.weight_decay], dtype=np.float32),
            FLOOR: np.array([[NORM_FLOOR]], dtype=np.float32),
        },
    )
    import_domain(model)


def _spectral(name: str, shape: tuple[int, ...], graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """theta = w |w| / sigma, with sigma from one power iteration on |W|; gradients flow through all of it."""
    rows, columns = shape[0], math.prod(shape[1:])
    _add_constants(
        graph,
        {
            f"{name}.matrix_shape": np.array([rows, columns], dtype=np.int64),
            f"{name}.row_shape": np.array([1, -1], dtype=np.int64),
            f"{name}.column_shape": np.array([-1, 1], dtype=np.int64),
            f"{name}.scalar_shape": np.array([1], dtype=np.int64),
            f"{name}.ones": np.ones((columns, 1), dtype=np.float32),
        },
    )

    def node(operator: str, inputs: list[str], output: str) -> onnx.NodeProto:
        names = [each if each == FLOOR else f"{name}.{each}" for each in inputs]
        return helper.make_node(operator, names, [f"{name}.{output}"], name=f"{name}.{output}.{operator}")

    def norm(vector: str) -> list[onnx.NodeProto]:
        # Reshape, not Transpose: onnxruntime fuses a transpose before a product into an op that is not standard.
        return [
            node("MatMul", [f"{vector}_row", f"{vector}_column"], f"{vector}_square"),
            node("Add", [f"{vector}_square", FLOOR], f"{vector}_floored"),
            node("Sqrt", [f"{vector}_floored"], f"{vector}_norm"),
        ]

    return [
        _ours("Decay", [name, WEIGHT_DECAY], f"{name}.w"),
        node("Abs", ["w"], "magnitude"),
        node("Reshape", ["magnitude", "matrix_shape"], "matrix"),
        node("MatMul", ["matrix", "ones"], "left_column"),
        node("Reshape", ["left_column", "row_shape"], "left_row"),
        *norm("left"),
        node("Div", ["left_row", "left_norm"], "u"),
        node("MatMul", ["u", "matrix"], "right_row"),
        node("Reshape", ["right_row", "column_shape"], "right_column"),
        *norm("right"),
        node("Reshape", ["right_norm", "scalar_shape"], "sigma"),
        node("Mul", ["w", "magnitude"], "product"),
        node("Div", ["product", "sigma"], "theta"),
    ]


def _ours(operator: str, inputs: list[str], output: str) -> onnx.NodeProto:
    return helper.make_node(operator, inputs, [output], name=f"{inputs[0]}.{operator}", domain=OP_DOMAIN)


def _add_constants(
    graph: onnx.GraphProto, constants: Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]
) -> None:
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
