"""Reads a forward graph as a list of layers, from which step.py writes the sparse step.

It understands only what our kernels support: 2-d convolutions with or without bias and groups, BatchNorm with residual
addition and ReLU or ReLU6, pooling, and a linear layer at the end. It refuses anything else by name.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import onnx
from onnx import helper, numpy_helper

from sparsyedge.edge.errors import ArtifactError

__all__ = ["Bias", "Conv", "Layer", "MaxPool", "MeanPool", "Network", "Norm", "read_network"]

Plane = tuple[int, int]
MAX_STRIDE = 2


@dataclass(frozen=True, kw_only=True)
class Conv:
    """A convolution; a linear layer is a 1x1 convolution on a plane of one position."""

    x: str
    y: str
    weight: str
    channels_in: int
    channels_out: int
    kernel: Plane
    stride: int
    pad: Plane
    plane_in: Plane
    plane_out: Plane
    groups: int = 1
    halo_in: int = 0
    halo_out: int = 0
    """Rings of zeros around the gradient of the output."""
    needs_input_gradient: bool = True
    linear: bool = False

    @property
    def gradient_reach(self) -> int:
        """How far outside the output's plane the input gradient reads; zeros there save it any border code."""
        if not self.needs_input_gradient:
            return 0
        axes = zip(self.kernel, self.pad, self.plane_in, self.plane_out, strict=True)
        return max(_reach(self.stride, *axis) for axis in axes)

    @property
    def weights_per_row(self) -> int:
        """Weights of one output channel."""
        return self.channels_in // self.groups * math.prod(self.kernel)


@dataclass(frozen=True, kw_only=True)
class Norm:
    """BatchNorm, then an optional residual addition, then an optional ReLU, which may have an upper limit."""

    x: str
    y: str
    gamma: str
    beta: str
    mean: str
    variance: str
    epsilon: float
    momentum: float
    """The weight of the new value, as in torch."""
    residual: str | None
    relu: bool
    cap: float = math.inf


@dataclass(frozen=True, kw_only=True)
class MeanPool:
    """The mean of each channel's plane."""

    x: str
    y: str


@dataclass(frozen=True, kw_only=True)
class MaxPool:
    x: str
    y: str
    kernel: int
    stride: int
    pad: int


@dataclass(frozen=True, kw_only=True)
class Bias:
    """Adds one number per channel."""

    x: str
    y: str
    bias: str


Layer = Conv | Norm | MeanPool | MaxPool | Bias


@dataclass(frozen=True)
class Network:
    """The layers in forward order, with the geometry of the tensors between them."""

    layers: tuple[Layer, ...]
    input_shape: tuple[int, int, int]
    planes: Mapping[str, Plane]
    halos: Mapping[str, int]
    gradient_halos: Mapping[str, int]
    vectors: Mapping[str, int]
    """Parameters and statistics other than convolution weights, with their lengths."""

    @cached_property
    def convs(self) -> tuple[Conv, ...]:
        return tuple(layer for layer in self.layers if isinstance(layer, Conv))

    def halo(self, tensor: str) -> int:
        """Rings of zeros stored around the tensor."""
        return self.halos.get(tensor, 0)

    def gradient_halo(self, tensor: str) -> int:
        """Rings of zeros stored around the tensor's gradient."""
        return self.gradient_halos.get(tensor, 0)

    @cached_property
    def channels(self) -> dict[str, int]:
        """Channels of every tensor between layers."""
        channels: dict[str, int] = {}
        for layer in self.layers:
            if isinstance(layer, Conv):
                channels.setdefault(layer.x, layer.channels_in)
                channels[layer.y] = layer.channels_out
            else:
                channels[layer.y] = channels[layer.x]
        return channels

    def plane(self, tensor: str) -> Plane:
        """Height and width of the tensor without its halo."""
        return self.planes[tensor]


def read_network(forward: onnx.ModelProto, input_name: str) -> Network:
    """The layers of a forward graph in training mode; raises ArtifactError for layers the sparse step does not know."""
    return _Reader(forward, input_name).read()


class _Reader:
    """One pass over the nodes in order; skips nodes that a BatchNorm has absorbed."""

    def __init__(self, forward: onnx.ModelProto, input_name: str) -> None:
        graph = onnx.shape_inference.infer_shapes(forward).graph
        self._nodes = list(graph.node)
        self._weights = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._shapes = {value.name: _dims(value) for value in (*graph.value_info, *graph.input, *graph.output)}
        self._position = {output: at for at, node in enumerate(self._nodes) for output in node.output}
        self._alias = {input_name: f"{input_name}.lanes"}
        self._absorbed: set[int] = set()
        self._layers: list[Layer] = []
        self._planes: dict[str, Plane] = {}
        channels, height, width = self._shapes[input_name][1:]
        self._input_shape = (channels, height, width)
        self._planes[self._alias[input_name]] = (height, width)

    def read(self) -> Network:
        for at, node in enumerate(self._nodes):
            if at not in self._absorbed:
                self._read_node(at, node)
        halos, gradient_halos = _halos(self._layers)
        layers = tuple(
            dataclasses.replace(layer, halo_in=halos.get(layer.x, 0), halo_out=gradient_halos.get(layer.y, 0))
            if isinstance(layer, Conv)
            else layer
            for layer in self._layers
        )
        vectors = {name: dims[0] for name, dims in self._weights.items() if len(dims) == 1 and name in _vectors(layers)}
        return Network(layers, self._input_shape, self._planes, halos, gradient_halos, vectors)

    def _read_node(self, at: int, node: onnx.NodeProto) -> None:
        match node.op_type:
            case "Conv":
                self._read_conv(node)
            case "BatchNormalization":
                self._read_norm(at, node)
            case "MaxPool":
                self._read_max_pool(node)
            case "ReduceMean" | "GlobalAveragePool" | "AveragePool":
                self._read_mean(node)
            case "Flatten" | "Identity":
                self._alias[node.output[0]] = self._tensor(node.input[0])
            case "Gemm":
                self._read_linear(node)
            case "Constant":
                pass
            case other:
                raise self._unknown(node, f"operator {other}")

    def _read_conv(self, node: onnx.NodeProto) -> None:
        attributes = _attributes(node)
        if len(self._weights[node.input[1]]) != 4:
            raise self._unknown(node, "a convolution that is not 2-d")
        strides = set(attributes.get("strides", [1]))
        top, left, bottom, right = attributes.get("pads", [0, 0, 0, 0])
        even = len(strides) == 1 and max(strides) <= MAX_STRIDE and (top, left) == (bottom, right)
        if not even or set(attributes.get("dilations", [1])) != {1}:
            raise self._unknown(
                node, f"a convolution with dilation, strides other than 1 or {MAX_STRIDE} both ways, or uneven padding"
            )
        groups = attributes.get("group", 1)
        channels_out, channels_in, height, width = self._weights[node.input[1]]
        biased = len(node.input) == 3
        x, y = self._tensor(node.input[0]), node.output[0]
        product = f"{y}.product" if biased else y
        self._planes[y] = self._planes[product] = self._plane(y)
        self._layers.append(
            Conv(
                x=x,
                y=product,
                weight=node.input[1],
                channels_in=channels_in * groups,
                channels_out=channels_out,
                kernel=(height, width),
                stride=strides.pop(),
                pad=(top, left),
                plane_in=self._planes[x],
                plane_out=self._planes[y],
                groups=groups,
                needs_input_gradient=bool(self._layers),
            )
        )
        if biased:
            self._layers.append(Bias(x=product, y=y, bias=node.input[2]))

    def _read_norm(self, at: int, node: onnx.NodeProto) -> None:
        attributes = _attributes(node)
        y, residual = node.output[0], None
        addition = self._only_consumer(y, "Add")
        if addition is not None:
            other = next(name for name in self._nodes[addition].input if name != y)
            # A block has two branches; the one that ends later absorbs the other.
            if self._position.get(other, -1) < at:
                residual, y = self._tensor(other), self._nodes[addition].output[0]
                self._absorbed.add(addition)
        cap = math.inf
        rectifier = self._only_consumer(y, "Relu")
        if rectifier is None:
            rectifier, cap = self._capped_relu(y)
        if rectifier is not None:
            y = self._nodes[rectifier].output[0]
            self._absorbed.add(rectifier)
        x = self._tensor(node.input[0])
        self._planes[y] = self._planes[x]
        self._layers.append(
            Norm(
                x=x,
                y=y,
                gamma=node.input[1],
                beta=node.input[2],
                mean=node.input[3],
                variance=node.input[4],
                epsilon=attributes.get("epsilon", 1e-5),
                momentum=1 - attributes.get("momentum", 0.9),
                residual=residual,
                relu=rectifier is not None,
                cap=cap,
            )
        )

    def _capped_relu(self, tensor: str) -> tuple[int | None, float]:
        """The node that clips the tensor to at least 0, as ReLU6 does, and its upper limit."""
        at = self._only_consumer(tensor, "Clip")
        limits = [self._scalar(name) for name in self._nodes[at].input[1:]] if at is not None else []
        return (at, limits[1]) if len(limits) == 2 and limits[0] == 0 and limits[1] > 0 else (None, math.inf)

    def _scalar(self, name: str) -> float:
        """The value of a constant; NaN if it is not one."""
        node = self._nodes[self._position[name]] if name in self._position else None
        if node is not None and node.op_type == "Constant":
            return float(numpy_helper.to_array(_attributes(node)["value"]))
        return float(numpy_helper.to_array(self._constants[name])) if name in self._constants else math.nan

    def _read_max_pool(self, node: onnx.NodeProto) -> None:
        attributes = _attributes(node)
        kernels, strides = set(attributes["kernel_shape"]), set(attributes.get("strides", [1]))
        pads = set(attributes.get("pads", [0]))
        if len(kernels) != 1 or len(strides) != 1 or len(pads) != 1 or attributes.get("ceil_mode", 0):
            raise self._unknown(node, "max-pooling with uneven kernel, strides or padding")
        x, y = self._tensor(node.input[0]), node.output[0]
        self._planes[y] = self._plane(y)
        self._layers.append(MaxPool(x=x, y=y, kernel=kernels.pop(), stride=strides.pop(), pad=pads.pop()))

    def _read_mean(self, node: onnx.NodeProto) -> None:
        attributes = _attributes(node)
        x, y = self._tensor(node.input[0]), node.output[0]
        if node.op_type == "AveragePool" and tuple(attributes["kernel_shape"]) != self._planes[x]:
            raise self._unknown(node, f"average-pooling over less than the plane, {attributes['kernel_shape']}")
        axes = attributes.get("axes", None if node.op_type == "ReduceMean" else [2, 3])
        if axes is None and len(node.input) > 1:
            axes = numpy_helper.to_array(self._constants[node.input[1]]).tolist()
        if sorted(axes or []) not in ([2, 3], [-2, -1]):
            raise self._unknown(node, f"a mean over axes {axes}")
        self._planes[y] = (1, 1)
        self._layers.append(MeanPool(x=x, y=y))

    def _read_linear(self, node: onnx.NodeProto) -> None:
        attributes = _attributes(node)
        x, y = self._tensor(node.input[0]), node.output[0]
        if attributes.get("transB", 0) != 1 or len(node.input) != 3 or self._planes[x] != (1, 1):
            raise self._unknown(node, "a linear layer without bias or on more than one position")
        channels_out, channels_in = self._weights[node.input[1]]
        product = f"{y}.product"
        self._planes[product] = self._planes[y] = (1, 1)
        self._layers.append(
            Conv(
                x=x,
                y=product,
                weight=node.input[1],
                channels_in=channels_in,
                channels_out=channels_out,
                kernel=(1, 1),
                stride=1,
                pad=(0, 0),
                plane_in=(1, 1),
                plane_out=(1, 1),
                linear=True,
            )
        )
        self._layers.append(Bias(x=product, y=y, bias=node.input[2]))

    def _only_consumer(self, tensor: str, operator: str) -> int | None:
        consumers = [at for at, node in enumerate(self._nodes) if tensor in node.input]
        return consumers[0] if len(consumers) == 1 and self._nodes[consumers[0]].op_type == operator else None

    def _tensor(self, name: str) -> str:
        return self._alias.get(name, name)

    def _plane(self, tensor: str) -> Plane:
        dims = self._shapes[tensor]
        return dims[2], dims[3]

    def _unknown(self, node: onnx.NodeProto, what: str) -> ArtifactError:
        return ArtifactError(
            f"the sparse step does not know {what} (node {node.name or node.output[0]}); "
            f"it knows convolutions, BatchNorm with residual and ReLU or ReLU6, pooling and one linear layer"
        )


def _halos(layers: Iterable[Layer]) -> tuple[dict[str, int], dict[str, int]]:
    """Per tensor, the rings of zeros that its consumers read, and those around its gradient."""
    layers = tuple(layers)
    sums = {layer.x: layer.y for layer in layers if isinstance(layer, Bias)}  # a bias works in place
    halos: dict[str, int] = {}
    for layer in layers:
        if isinstance(layer, Conv | MaxPool):
            pad = max(layer.pad) if isinstance(layer, Conv) else layer.pad
            halos[layer.x] = max(halos.get(layer.x, 0), pad)
    reaches = {sums.get(conv.y, conv.y): conv.gradient_reach for conv in layers if isinstance(conv, Conv)}
    # A convolution gives the gradient of its input the halo of its input.
    for tensor in {conv.x for conv in layers if isinstance(conv, Conv)} & set(reaches):
        halos[tensor] = max(halos[tensor], reaches.pop(tensor))
    gradient_halos = {**halos, **reaches}
    for product, total in sums.items():
        halos[product], gradient_halos[product] = halos.get(total, 0), gradient_halos.get(total, 0)
    return halos, gradient_halos


def _reach(stride: int, kernel: int, pad: int, size_in: int, size_out: int) -> int:
    """How many rows beyond the output the gradient of the input's rows reads, on the worse side."""
    reach = 0
    for row in range(size_in):
        for tap in range(kernel):
            place, rest = divmod(row + pad - tap, stride)
            if rest == 0:
                reach = max(reach, -place, place - (size_out - 1))
    return reach


def _vectors(layers: Iterable[Layer]) -> set[str]:
    names: set[str] = set()
    for layer in layers:
        if isinstance(layer, Norm):
            names |= {layer.gamma, layer.beta, layer.mean, layer.variance}
        elif isinstance(layer, Bias):
            names.add(layer.bias)
    return names


def _dims(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    return tuple(dimension.dim_value for dimension in value.type.tensor_type.shape.dim)


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
