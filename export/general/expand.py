"""From the nodes of a traced graph to what a device runs: our native ops, and standard ops where those are as good."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sparsyedge.edge.native import OP_DOMAIN
from sparsyedge.edge.training.job_inputs import THRESHOLD_OF_ALL

__all__ = ["PRUNES_INPUTS", "Choice", "Expansion", "Weight"]

PRUNES_INPUTS = "prunes_inputs"
"""Whether `THRESHOLD_OF_ALL` is negative, for the ops that have no threshold as input."""

Nodes = list[onnx.NodeProto]


@dataclass(frozen=True)
class Choice:
    """What a layer needs to compute with its non-zeros, and the input that says whether it does."""

    condition: str
    theta: str
    plan: str


@dataclass(frozen=True)
class Weight:
    """A layer's weight: its tensor, or values and a plan."""

    name: str
    shape: tuple[int, ...]
    choice: Choice | None = None
    """None if the layer computes dense, with the tensor of this name."""
    saving: Mapping[str, int] = field(default_factory=lambda: {"prune": 0})
    """Attributes of SaveInput and PruneActivation."""
    counted: str | None = None
    """Values whose zeros set how much of the input is kept."""
    warms_up: bool = False
    """Whether `THRESHOLD_OF_ALL` may keep the whole input."""

    @property
    def is_prunable(self) -> bool:
        return self.choice is not None or self.saving != {"prune": 0}


class Expansion:
    """Expands nodes one by one, in the order of the graph."""

    def __init__(self, weights: Mapping[str, Weight]) -> None:
        self._weights = weights

    def expand(self, node: onnx.NodeProto) -> Nodes:
        """The nodes that take this one's place."""
        expand: Callable[[onnx.NodeProto, dict[str, Any]], Nodes] = getattr(self, f"_{node.op_type}")
        return expand(node, {each.name: helper.get_attribute_value(each) for each in node.attribute})

    def _layer(self, attributes: Mapping[str, Any]) -> Weight:
        return self._weights[attributes["layer"].decode()]

    # ---- linear layers and 1x1 convolutions --------------------------------------------------------------------------

    def _linear(self, node: onnx.NodeProto, attributes: dict[str, Any]) -> Nodes:
        return self._forward(node, self._layer(attributes), channels_last=1)

    def _pointwise(self, node: onnx.NodeProto, attributes: dict[str, Any]) -> Nodes:
        return self._forward(node, self._layer(attributes), channels_last=0)

    def _forward(self, node: onnx.NodeProto, weight: Weight, *, channels_last: int) -> Nodes:
        x, bias, y = node.input[0], list(node.input[2:]), node.output[0]
        choice = weight.choice
        if choice is None:
            return _dense_forward(x, weight, bias, y, channels_last=channels_last, matrix=weight.name)
        sparse = [_ours("SparseLinear", [x, choice.theta, choice.plan, *bias], [f"{y}.s"], channels_last=channels_last)]
        matrix = f"{y}.w"
        dense = [
            _ours("Densify", [choice.theta, choice.plan], [matrix]),
            *_dense_forward(x, weight, bias, f"{y}.d", channels_last=channels_last, matrix=matrix),
        ]
        counted = [weight.counted] if weight.counted else []
        if weight.warms_up:
            counted = [weight.counted or "", THRESHOLD_OF_ALL]
        save = _ours(
            "SaveInput",
            [x, choice.plan, *counted],
            [f"{weight.name}.saved"],
            channels_last=channels_last,
            **weight.saving,
        )
        return [_either(choice.condition, sparse, dense, y), save]

    def _linear_grad_input(self, node: onnx.NodeProto, attributes: dict[str, Any]) -> Nodes:
        return self._grad_input(node, self._layer(attributes), channels_last=1)

    def _pointwise_grad_input(self, node: onnx.NodeProto, attributes: dict[str, Any]) -> Nodes:
        return self._grad_input(node, self._layer(attributes), channels_last=0)

    def _grad_input(self, node: onnx.NodeProto, weight: Weight, *, channels_last: int) -> Nodes:
        dy, dx = node.input[0], node.output[0]
        choice = weight.choice
        if choice is None:
            return _dense_grad_input(dy, weight, dx, channels_last=channels_last, matrix=weight.name)
        inputs = [dy, choice.theta, choice.plan]
        sparse = [_ours("SparseLinearGradInput", inputs, [f"{dx}.s"], channels_last=channels_last)]
        dense = [
            _ours("Densify", [choice.theta, choice.plan], [f"{dx}.w"]),
            *_dense_grad_input(dy, weight, f"{dx}.d", channels_last=channels_last, matrix=f"{dx}.w"),
        ]
        return [_either(choice.condition, sparse, dense, dx)]

    def _linear_grad_weight(self, node: onnx.NodeProto, attributes: dict[str, Any]) -> Nodes:
        return self._grad_weight(node, self._layer(attributes), channels_last=1)

    def _pointwise_grad_weight(self, node: onnx.NodeProto, attributes: dict[str, Any]) -> Nodes:
        return self._grad_weight(node, self._layer(attributes), channels_last=0)

    def _grad_weight(self, node: onnx.NodeProto, weight: Weight, *, channels_last: int) -> Nodes:
        x, dy = node.input[:2]
        choice = weight.choice
        if choice is None:
            return _dense_grad_weight(x, dy, weight, node.output[0], channels_last=channels_last)
        saved, gradient = f"{weight.name}.saved", f"{weight.name}.theta_grad"
        sparse = [_ours("SparseLinearGradWeight", [saved, dy, choice.plan], [f"{gradient}.s"])]
        dense = [
            _ours("LoadInput", [saved], [f"{gradient}.x"]),
            *_dense_grad_weight(f"{gradient}.x", dy, weight, f"{gradient}.w", channels_last=channels_last),
            _ours("Sparsify", [f"{gradient}.w", choice.plan], [f"{gradient}.d"]),
        ]
        return [_either(choice.condition, sparse, dense, gradient)]

    # ---- convolutions that compute dense -----------------------------------------------------------------------------

    def _convolution(self, node: onnx.NodeProto, attributes: dict[str, Any]) -> Nodes:
        x, w = node.input
        weight = self._layer(attributes)
        if _is_depthwise(weight.shape, attributes):
            return [_ours("DepthwiseConv", [x, w], node.output, **_depthwise(weight.shape[2:], attributes))]
        return [_standard("Conv", [x, w], node.output, **_geometry(attributes))]

    def _transposed_convolution(self, node: onnx.NodeProto, attributes: dict[str, Any]) -> Nodes:
        geometry = {**_geometry(attributes), "output_padding": list(attributes["extra"])}
        return [_standard("ConvTranspose", node.input, node.output, **geometry)]

    def _pruned_input(self, node: onnx.NodeProto, attributes: dict[str, Any]) -> Nodes:
        weight = self._layer(attributes)
        x, (y,) = node.input[0], node.output
        if "kept" in weight.saving:
            return [_ours("PruneActivation", [x, "sparsyedge.density"], [y])]
        if weight.saving == {"prune": 0}:
            return [_standard("Identity", [x], [y])]
        least = weight.saving["least"]
        if not weight.warms_up:
            return [_ours("PruneActivation", [x, weight.name], [y], least=least)]
        pruned = [_ours("PruneActivation", [x, weight.name], [f"{y}.pruned"], least=least)]
        return [_either(PRUNES_INPUTS, pruned, [_standard("Identity", [x], [f"{y}.whole"])], y)]

    def _convolution_grad_input(self, node: onnx.NodeProto, attributes: dict[str, Any]) -> Nodes:
        dy, w = node.input
        weight = self._layer(attributes)
        if _is_depthwise(weight.shape, attributes):
            height, width = attributes["plane"]
            sizes = {"in_h": height, "in_w": width, **_depthwise(weight.shape[2:], attributes)}
            return [_ours("DepthwiseConvGradInput", [dy, w], node.output, **sizes)]
        sides = (attributes["plane"], attributes["stride"], attributes["dilation"], _both(attributes["padding"]))
        # What the forward pass left unread at the far end.
        rest = [
            (size + pad - step * (taps - 1) - 1) % leap
            for taps, size, leap, step, pad in zip(weight.shape[2:], *sides, strict=True)
        ]
        return [_standard("ConvTranspose", [dy, w], node.output, output_padding=rest, **_geometry(attributes))]

    def _convolution_grad_weight(self, node: onnx.NodeProto, attributes: dict[str, Any]) -> Nodes:
        x, dy = node.input
        (dw,) = node.output
        weight = self._layer(attributes)
        if _is_depthwise(weight.shape, attributes):
            return [_ours("DepthwiseConvGradWeight", [x, dy], [dw], **_depthwise(weight.shape[2:], attributes))]
        return _conv_grad_weight(x, dy, dw, weight.shape, attributes)

    # ---- everything else ---------------------------------------------------------------------------------------------

    def _layer_norm(self, node: onnx.NodeProto, attributes: dict[str, Any]) -> Nodes:
        return [_ours("LayerNormTrain", node.input, node.output, **attributes)]

    def _layer_norm_grad(self, node: onnx.NodeProto, attributes: dict[str, Any]) -> Nodes:
        return [_ours("LayerNormTrainGrad", node.input, node.output)]

    def _batch_norm(self, node: onnx.NodeProto, attributes: dict[str, Any]) -> Nodes:
        return [_ours("BatchNormTrain", node.input, node.output, **attributes)]

    def _batch_norm_grad(self, node: onnx.NodeProto, attributes: dict[str, Any]) -> Nodes:
        return [_ours("BatchNormTrainGrad", node.input, node.output)]

    def _gelu(self, node: onnx.NodeProto, attributes: dict[str, Any]) -> Nodes:
        return [_ours("Gelu", node.input, node.output, **attributes)]

    def _gelu_grad(self, node: onnx.NodeProto, attributes: dict[str, Any]) -> Nodes:
        return [_ours("GeluGrad", node.input, node.output, **attributes)]

    def _softmax(self, node: onnx.NodeProto, attributes: dict[str, Any]) -> Nodes:
        return [_standard("Softmax", node.input, node.output, axis=-1)]

    def _softmax_grad(self, node: onnx.NodeProto, attributes: dict[str, Any]) -> Nodes:
        return [_ours("SoftmaxGrad", node.input, node.output)]

    def _dropout(self, node: onnx.NodeProto, attributes: dict[str, Any]) -> Nodes:
        return [_ours("Dropout", node.input, node.output, **attributes)]


# ---- dense products --------------------------------------------------------------------------------------------------


def _dense_forward(x: str, weight: Weight, bias: Sequence[str], y: str, *, channels_last: int, matrix: str) -> Nodes:
    if not channels_last:
        shape = _constant(f"{y}.w_shape", weight.shape)
        reshape = _standard("Reshape", [matrix, shape.output[0]], [f"{y}.w4"])
        return [shape, reshape, _standard("Conv", [x, f"{y}.w4", *bias], [y])]
    transposed, product = f"{y}.wt", f"{y}.product" if bias else y
    nodes = [
        _standard("Transpose", [matrix], [transposed], perm=[1, 0]),
        _standard("MatMul", [x, transposed], [product]),
    ]
    return [*nodes, *(_standard("Add", [product, each], [y]) for each in bias)]


def _dense_grad_input(dy: str, weight: Weight, dx: str, *, channels_last: int, matrix: str) -> Nodes:
    if channels_last:
        return [_standard("MatMul", [dy, matrix], [dx])]
    shape = _constant(f"{dx}.w_shape", weight.shape)
    reshape = _standard("Reshape", [matrix, shape.output[0]], [f"{dx}.w4"])
    return [shape, reshape, _standard("ConvTranspose", [dy, f"{dx}.w4"], [dx])]


def _dense_grad_weight(x: str, dy: str, weight: Weight, dw: str, *, channels_last: int) -> Nodes:
    rows, columns = weight.shape[:2]
    if channels_last:
        shapes = [_constant(f"{dw}.dy_shape", [-1, rows]), _constant(f"{dw}.x_shape", [-1, columns])]
        return [
            *shapes,
            _standard("Reshape", [dy, shapes[0].output[0]], [f"{dw}.dy"]),
            _standard("Reshape", [x, shapes[1].output[0]], [f"{dw}.flat"]),
            _standard("Gemm", [f"{dw}.dy", f"{dw}.flat"], [dw], transA=1),
        ]
    # (samples, rows, positions) x (samples, positions, columns), summed over samples.
    shapes = [_constant(f"{dw}.dy_shape", [0, rows, -1]), _constant(f"{dw}.x_shape", [0, columns, -1])]
    axis, whole = _constant(f"{dw}.axis", [0]), _constant(f"{dw}.shape", weight.shape)
    return [
        *shapes,
        _standard("Reshape", [dy, shapes[0].output[0]], [f"{dw}.dy"]),
        _standard("Reshape", [x, shapes[1].output[0]], [f"{dw}.planes"]),
        _standard("Transpose", [f"{dw}.planes"], [f"{dw}.xt"], perm=[0, 2, 1]),
        _standard("MatMul", [f"{dw}.dy", f"{dw}.xt"], [f"{dw}.each"]),
        axis,
        _standard("ReduceSum", [f"{dw}.each", axis.output[0]], [f"{dw}.sum"], keepdims=0),
        whole,
        _standard("Reshape", [f"{dw}.sum", whole.output[0]], [dw]),
    ]


def _conv_grad_weight(x: str, dy: str, dw: str, shape: Sequence[int], attributes: Mapping[str, Any]) -> Nodes:
    """A convolution of the input with dy, whose kernel is dy: samples are its channels, steps its dilation."""
    groups, plane = attributes["groups"], len(shape) - 2
    axes = list(range(plane))
    per_group = shape[1]
    nodes = []
    # x as (channels of a group, groups x samples, plane), dy as (outputs, samples, plane).
    if groups == 1:
        nodes.append(_standard("Transpose", [x], [f"{dw}.x"], perm=[1, 0, *(2 + axis for axis in axes)]))
    else:
        sizes = f"{dw}.sizes"
        plane_sizes = helper.make_node("Shape", [x], [sizes], name=f"{sizes}.Shape", start=2)
        head, join = _constant(f"{dw}.head", [0, groups, per_group]), _constant(f"{dw}.join", [per_group, -1])
        nodes += [
            plane_sizes,
            head,
            join,
            _standard("Concat", [head.output[0], sizes], [f"{dw}.split"], axis=0),
            _standard("Concat", [join.output[0], sizes], [f"{dw}.joined"], axis=0),
            _standard("Reshape", [x, f"{dw}.split"], [f"{dw}.parts"]),
            _standard("Transpose", [f"{dw}.parts"], [f"{dw}.turned"], perm=[2, 1, 0, *(3 + axis for axis in axes)]),
            _standard("Reshape", [f"{dw}.turned", f"{dw}.joined"], [f"{dw}.x"]),
        ]
    nodes.append(_standard("Transpose", [dy], [f"{dw}.dy"], perm=[1, 0, *(2 + axis for axis in axes)]))
    swapped = _geometry({**attributes, "stride": attributes["dilation"], "dilation": attributes["stride"]})
    nodes.append(_standard("Conv", [f"{dw}.x", f"{dw}.dy"], [f"{dw}.wide"], **swapped))
    begin, end = _constant(f"{dw}.begin", [0] * plane), _constant(f"{dw}.end", shape[2:])
    over = _constant(f"{dw}.over", [2 + axis for axis in axes])
    # Rows that the forward pass left unread give positions beyond the kernel.
    cut = _standard("Slice", [f"{dw}.wide", begin.output[0], end.output[0], over.output[0]], [f"{dw}.cut"])
    turn = _standard("Transpose", [f"{dw}.cut"], [dw], perm=[1, 0, *(2 + axis for axis in axes)])
    return [*nodes, begin, end, over, cut, turn]


# ---- nodes -----------------------------------------------------------------------------------------------------------


def _either(condition: str, sparse: Nodes, dense: Nodes, output: str) -> onnx.NodeProto:
    branches = {
        key: helper.make_graph(
            nodes, key, [], [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)]
        )
        for key, nodes in (("then_branch", sparse), ("else_branch", dense))
    }
    return helper.make_node("If", [condition], [output], name=f"{output}.If", **branches)


def _both(padding: Sequence[int]) -> list[int]:
    """Zeros on both sides of every axis together."""
    half = len(padding) // 2
    return [front + back for front, back in zip(padding[:half], padding[half:], strict=True)]


def _is_depthwise(shape: Sequence[int], attributes: Mapping[str, Any]) -> bool:
    padding, half = list(attributes["padding"]), len(shape) - 2
    is_plain = set(attributes["dilation"]) == {1} and padding[:half] == padding[half:]
    return len(shape) == 4 and shape[1] == 1 and attributes["groups"] == shape[0] and is_plain


def _depthwise(kernel: Sequence[int], attributes: Mapping[str, Any]) -> dict[str, int]:
    named = {"kernel": kernel, "stride": attributes["stride"], "pad": attributes["padding"][: len(kernel)]}
    return {f"{key}_{axis}": value for key, values in named.items() for axis, value in zip("hw", values, strict=True)}


def _geometry(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "strides": list(attributes["stride"]),
        "pads": list(attributes["padding"]),
        "dilations": list(attributes["dilation"]),
        "group": attributes["groups"],
    }


def _constant(name: str, values: Sequence[int]) -> onnx.NodeProto:
    value = numpy_helper.from_array(np.array(values, dtype=np.int64), name)
    return helper.make_node("Constant", [], [name], name=f"{name}.Constant", value=value)


def _ours(operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, inputs, outputs, name=f"{outputs[0]}.{operator}", domain=OP_DOMAIN, **attributes)


def _standard(operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, inputs, outputs, name=f"{outputs[0]}.{operator}", **attributes)
