"""Puts our ops in place of torch's in a traced program, before torch differentiates it.

At this level a layer is still one op with its weight as a named input, so no pattern has to be guessed from gradients.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from sparsyedge.export.general import torch_ops  # noqa: F401  defines torch.ops.sparsyedge

__all__ = ["Layers", "substitute"]

_ATEN = torch.ops.aten
_OURS = torch.ops.sparsyedge


@dataclass
class Layers:
    """The layers that a program holds, by the name of their weight."""

    sparse: dict[str, str] = field(default_factory=dict)
    """Layers that can compute with their non-zeros, and what they are: `linear` or `pointwise`."""
    dense: list[str] = field(default_factory=list)
    """Convolutions that compute dense, whatever their weights."""
    positions: dict[str, int] = field(default_factory=dict)
    """How many positions of a sample a layer's weight applies to."""
    shared: set[str] = field(default_factory=set)
    """Weights that several layers use, or that are used in other ways as well."""
    unnamed: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The shapes of weights that are no parameters: computed ones, and shared ones."""
    planes: dict[str, int] = field(default_factory=dict)
    """How many positions of a sample a BatchNorm sees, by the name of its running mean."""

    def __iter__(self) -> Iterator[str]:
        return iter((*self.sparse, *self.dense))


def substitute(program: ExportedProgram, *, seed: str, prefix: str, samples: int) -> Layers:
    """Replace ops in place; returns the layers it found, by the names of weights without `prefix`.

    `seed` is the name of the input from which dropout draws, `samples` the batch that the program was traced with.
    """
    surgeon = _Surgeon(program, seed, prefix, samples)
    for node in list(program.graph.nodes):
        surgeon.visit(node)
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()
    return surgeon.layers


class _Surgeon:
    def __init__(self, program: ExportedProgram, seed: str, prefix: str, samples: int) -> None:
        self.graph: Graph = program.graph
        self.layers = Layers()
        self._parameters: dict[str, str] = {
            spec.arg.name: spec.target.removeprefix(prefix)
            for spec in program.graph_signature.input_specs
            if spec.target is not None
        }
        self._seed = next(node for node in self.graph.nodes if node.op == "placeholder" and node.name == seed)
        self._mode = self._seed.meta["val"].fake_mode
        self._samples = samples
        self._dropouts = 0
        self._uses: dict[str, int] = {}
        for node in self.graph.nodes:
            weight = _weight_of(node)
            if weight is not None and weight.name in self._parameters:
                self._uses[weight.name] = len(weight.users)

    def visit(self, node: Node) -> None:
        handlers: dict[Any, Callable[[Node], None]] = {
            _ATEN.linear.default: self._linear,
            _ATEN.conv1d.default: self._convolution,
            _ATEN.conv2d.default: self._convolution,
            _ATEN.conv3d.default: self._convolution,
            _ATEN.conv1d.padding: self._convolution,
            _ATEN.conv2d.padding: self._convolution,
            _ATEN.conv3d.padding: self._convolution,
            _ATEN.conv_transpose1d.default: self._transposed,
            _ATEN.conv_transpose2d.input: self._transposed,
            _ATEN.conv_transpose3d.input: self._transposed,
            _ATEN.avg_pool1d.default: self._average,
            _ATEN.avg_pool2d.default: self._average,
            _ATEN.adaptive_avg_pool1d.default: self._adaptive_average,
            _ATEN.adaptive_avg_pool2d.default: self._adaptive_average,
            _ATEN.batch_norm.default: self._batch_norm,
            _ATEN.layer_norm.default: self._layer_norm,
            _ATEN.gelu.default: self._gelu,
            _ATEN.softmax.int: self._softmax,
            _ATEN.scaled_dot_product_attention.default: self._attention,
            _ATEN.dropout.default: self._dropout,
        }
        if node.target in handlers:
            handlers[node.target](node)

    # ---- layers ------------------------------------------------------------------------------------------------------

    def _layer_name(self, weight: Node) -> str | None:
        """The weight's name, if it is a parameter that only this layer uses."""
        name = self._parameters.get(weight.name)
        if name is not None and self._uses[weight.name] > 1:
            self.layers.shared.add(name)
            return None
        return name

    def _linear(self, node: Node) -> None:
        x, weight, bias = _arguments(node, 3)
        name = self._layer_name(weight)
        if name is not None and len(_shape(weight)) == 2:
            self.layers.sparse[name] = "linear"
            self.layers.positions[name] = _size(node) // (self._samples * _shape(weight)[0])
            self._replace(node, _OURS.linear.default, x, weight, bias, name)

    def _convolution(self, node: Node) -> None:
        x, weight, bias, stride, padding, dilation, groups = _arguments(node, 7)
        kernel, groups = _shape(weight)[2:], groups or 1
        stride, dilation = _spread(stride, 1, kernel), _spread(dilation, 1, kernel)
        before, after = _padding(padding, kernel, dilation)
        name = self._layer_name(weight)
        is_pointwise = set(kernel) | set(stride) == {1} and {*before, *after} == {0} and groups == 1
        if name is not None:
            self.layers.positions[name] = math.prod(_shape(node)[2:])
        if name is not None and is_pointwise:
            self.layers.sparse[name] = "pointwise"
            self._replace(node, _OURS.pointwise.default, x, weight, bias, name)
            return
        layer = self._dense_layer(name, weight)
        with self.graph.inserting_before(node):
            padding = [*before, *after]
            y = self._call(_OURS.convolution.default, x, weight, stride, padding, dilation, groups, layer)
            y = self._with_bias(y, bias)
        self._put(node, y)

    def _transposed(self, node: Node) -> None:
        x, weight, bias, stride, padding, extra, groups, dilation = _arguments(node, 8)
        kernel = _shape(weight)[2:]
        name = self._layer_name(weight)
        if name is not None:
            self.layers.positions[name] = math.prod(_shape(x)[2:])
        padding = 2 * _spread(padding, 0, kernel)
        geometry = (_spread(stride, 1, kernel), padding, _spread(dilation, 1, kernel), groups or 1)
        layer = self._dense_layer(name, weight)
        with self.graph.inserting_before(node):
            extra = _spread(extra, 0, kernel)
            y = self._call(_OURS.transposed_convolution.default, x, weight, extra, *geometry, layer)
            y = self._with_bias(y, bias)
        self._put(node, y)

    def _dense_layer(self, name: str | None, weight: Node) -> str:
        """Note a layer that computes dense; one whose weight is no parameter of its own gets a number for a name."""
        if name is not None:
            self.layers.dense.append(name)
            return name
        layer = f"#{len(self.layers.unnamed)}"
        self.layers.unnamed[layer] = _shape(weight)
        return layer

    def _with_bias(self, y: Node, bias: Node | None) -> Node:
        if bias is None:
            return y
        column = self._call(_ATEN.view.default, bias, [1, -1, *[1] * (len(_shape(y)) - 2)])
        return self._call(_ATEN.add.Tensor, y, column)

    # ---- everything else ---------------------------------------------------------------------------------------------

    def _batch_norm(self, node: Node) -> None:
        x, gamma, beta, mean, variance, training, momentum, epsilon, _ = _arguments(node, 9)
        if not training:
            return
        if mean is not None:
            self.layers.planes[self._parameters[mean.name]] = math.prod(_shape(x)[2:])
        with self.graph.inserting_before(node):
            # For what the norm does without: a scale of one, a shift of zero, statistics that nobody reads.
            ones, zeros = (self._call(_ATEN.full.default, [_shape(x)[1]], value) for value in (1.0, 0.0))
            statistics = (zeros, ones) if mean is None else (mean, variance)
            norm = self._call(_OURS.batch_norm.default, x, gamma or ones, beta or zeros, *statistics, momentum, epsilon)
            if mean is not None:
                self._call(_ATEN.copy_.default, mean, self._item(norm, 3))
                self._call(_ATEN.copy_.default, variance, self._item(norm, 4))
            y = self._item(norm, 0)
        self._put(node, y)

    def _average(self, node: Node) -> None:
        """The mean over windows side by side; overlapping ones are a convolution."""
        x, window, stride, padding, ceil_mode, count_padding, divisor = (*_arguments(node, 7), None)[:7]
        plane = _shape(x)[2:]
        window = _spread(window, 1, plane)
        stride, padding = _spread(stride or window, 1, plane), _spread(padding, 0, plane)
        counts_padding = count_padding is not False or set(padding) == {0}
        if ceil_mode or not counts_padding or divisor is not None or len(_shape(x)) != len(plane) + 2:
            return
        parts = [size // length for size, length in zip(plane, window, strict=True)]
        fits = all(size == part * length for size, part, length in zip(plane, parts, window, strict=True))
        if stride == window and fits and set(padding) == {0}:
            self._mean_of_parts(node, x, parts)
            return
        channels = _shape(x)[1]
        with self.graph.inserting_before(node):
            weight = self._call(_ATEN.full.default, [channels, 1, *window], 1 / math.prod(window))
            layer = self._dense_layer(None, weight)
            geometry = (stride, 2 * padding, [1] * len(plane), channels)
            y = self._call(_OURS.convolution.default, x, weight, *geometry, layer)
        self._put(node, y)

    def _adaptive_average(self, node: Node) -> None:
        x, parts = _arguments(node, 2)
        plane = _shape(x)[2:]
        parts = _spread(parts, 1, plane)
        if all(size % part == 0 for size, part in zip(plane, parts, strict=True)):
            self._mean_of_parts(node, x, parts)

    def _mean_of_parts(self, node: Node, x: Node, parts: list[int]) -> None:
        """Cut every axis of the plane into parts of equal size and take the mean of each."""
        _, channels, *plane = x.meta["val"].shape
        cut = [size for whole, part in zip(plane, parts, strict=True) for size in (part, whole // part)]
        with self.graph.inserting_before(node):
            blocks = self._call(_ATEN.view.default, x, [-1, channels, *cut])
            y = self._call(_ATEN.mean.dim, blocks, [3 + 2 * axis for axis in range(len(parts))])
        self._put(node, y)

    def _layer_norm(self, node: Node) -> None:
        x, shape, gamma, beta, epsilon, _ = _arguments(node, 6)
        if len(shape) != 1 or gamma is None or beta is None:
            return
        with self.graph.inserting_before(node):
            y = self._item(
                self._call(_OURS.layer_norm.default, x, gamma, beta, 1e-5 if epsilon is None else epsilon), 0
            )
        self._put(node, y)

    def _gelu(self, node: Node) -> None:
        self._replace(node, _OURS.gelu.default, node.args[0], node.kwargs.get("approximate", "none") == "tanh")

    def _softmax(self, node: Node) -> None:
        x, axis, _ = _arguments(node, 3)
        if axis in (-1, len(_shape(x)) - 1):
            self._replace(node, _OURS.softmax.default, x)

    def _attention(self, node: Node) -> None:
        """Attention as two products: torch's own form guards against rows that are masked as a whole."""
        query, key, value, mask, ratio, causal = _arguments(node, 6)
        if mask is not None or causal or node.kwargs.get("enable_gqa"):
            return
        scale = node.kwargs.get("scale")
        scale = _shape(query)[-1] ** -0.5 if scale is None else scale
        with self.graph.inserting_before(node):
            scaled = self._call(_ATEN.mul.Tensor, query, scale)
            scores = self._call(_ATEN.matmul.default, scaled, self._call(_ATEN.transpose.int, key, -2, -1))
            weights = self._call(_OURS.softmax.default, scores)
            if ratio:
                weights = self._call(_OURS.dropout.default, weights, self._seed, ratio, self._next_stream())
            y = self._call(_ATEN.matmul.default, weights, value)
        self._put(node, y)

    def _dropout(self, node: Node) -> None:
        x, ratio, training = _arguments(node, 3)
        if not training or ratio == 0:
            node.replace_all_uses_with(x)
            self.graph.erase_node(node)
            return
        self._replace(node, _OURS.dropout.default, x, self._seed, ratio, self._next_stream())

    def _next_stream(self) -> int:
        self._dropouts += 1
        return self._dropouts - 1

    # ---- nodes -------------------------------------------------------------------------------------------------------

    def _call(self, target: Any, *arguments: Any) -> Node:
        """A new node. Its shape is worked out at once: later substitutions look at it."""
        node = self.graph.call_function(target, arguments)
        values = torch.fx.node.map_arg(arguments, lambda each: each.meta["val"])
        if target is not _ATEN.copy_.default:
            with self._mode, torch.no_grad():
                node.meta["val"] = target(*values)
        return node

    def _item(self, node: Node, index: int) -> Node:
        item = self.graph.call_function(operator.getitem, (node, index))
        if "val" in node.meta:
            item.meta["val"] = node.meta["val"][index]
        return item

    def _replace(self, node: Node, target: Any, *arguments: Any) -> None:
        with self.graph.inserting_before(node):
            new = self._call(target, *arguments)
        self._put(node, new)

    def _put(self, node: Node, new: Node) -> None:
        new.meta = {**node.meta, **new.meta}
        node.replace_all_uses_with(new)
        self.graph.erase_node(node)


def _weight_of(node: Node) -> Node | None:
    """The weight of a linear layer or convolution."""
    convolutions = (_ATEN.conv1d, _ATEN.conv2d, _ATEN.conv3d)
    transposed = (_ATEN.conv_transpose1d, _ATEN.conv_transpose2d, _ATEN.conv_transpose3d)
    layers = (_ATEN.linear, *convolutions, *transposed)
    if node.op != "call_function" or getattr(node.target, "overloadpacket", None) not in layers:
        return None
    weight = node.args[1]
    return weight if isinstance(weight, Node) else None


def _arguments(node: Node, count: int) -> list[Any]:
    """The node's arguments by position; those that are left out are None."""
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    return [given.get(name) for name in names[:count]]


def _shape(node: Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def _size(node: Node) -> int:
    """The number of elements in the traced batch."""
    size = node.meta["val"].numel()
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)


def _spread(value: Any, default: int, kernel: tuple[int, ...]) -> list[int]:
    """A setting for every axis; torch lets one number stand for all."""
    values = [default] if value is None else list(value)
    return values * len(kernel) if len(values) == 1 else values


def _padding(padding: Any, kernel: tuple[int, ...], dilation: list[int]) -> tuple[list[int], list[int]]:
    """Padding in front of and behind every axis."""
    if padding == "same":
        reach = [step * (size - 1) for size, step in zip(kernel, dilation, strict=True)]
        return [each // 2 for each in reach], [each - each // 2 for each in reach]
    sides = [0] * len(kernel) if padding == "valid" else _spread(padding, 0, kernel)
    return sides, sides
