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
        if self._uses.get(weight.name) != 1:
            return None
        return self._parameters[weight.name]

    def _linear(self, node: Node) -> None:
        x, weight, bias = _arguments(node, 3)
        name = self._layer_name(weight)
        if name is not None and len(_shape(weight)) == 2:
            self.layers.sparse[name] = "linear"
            self.layers.positions[name] = _size(node) // (self._samples * _shape(weight)[0])
            self._replace(node, _OURS.linear.default, x, weight, bias, name)

    def _convolution(self, node: Node) -> None:
        x, weight, bias, stride, padding, dilation, groups = _arguments(node, 7)
        name = self._layer_name(weight)
        kernel = _shape(weight)[2:]
        if name is None or len(_shape(x)) != len(kernel) + 2:
            return
        stride, dilation = _spread(stride, 1, kernel), _spread(dilation, 1, kernel)
        padding = _padding(padding, kernel, dilation)
        if padding is None:
            return
        self.layers.positions[name] = math.prod(_shape(node)[2:])
        if set(kernel) | set(stride) == {1} and set(padding) == {0} and groups in (None, 1):
            self.layers.sparse[name] = "pointwise"
            self._replace(node, _OURS.pointwise.default, x, weight, bias, name)
            return
        self.layers.dense.append(name)
        with self.graph.inserting_before(node):
            y = self._call(_OURS.convolution.default, x, weight, stride, padding, dilation, groups or 1, name)
            if bias is not None:
                column = self._call(_ATEN.view.default, bias, [1, -1, *[1] * len(kernel)])
                y = self._call(_ATEN.add.Tensor, y, column)
        self._put(node, y)

    # ---- everything else ---------------------------------------------------------------------------------------------

    def _batch_norm(self, node: Node) -> None:
        x, gamma, beta, mean, variance, training, momentum, epsilon, _ = _arguments(node, 9)
        if not training or None in (gamma, beta, mean, variance):
            return
        self.layers.planes[self._parameters[mean.name]] = math.prod(_shape(x)[2:])
        with self.graph.inserting_before(node):
            norm = self._call(_OURS.batch_norm.default, x, gamma, beta, mean, variance, momentum, epsilon)
            y, new_mean, new_variance = (self._item(norm, index) for index in (0, 3, 4))
            self._call(_ATEN.copy_.default, mean, new_mean)
            self._call(_ATEN.copy_.default, variance, new_variance)
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
        """Attention without mask and dropout, as two products: torch's own form guards against rows that are masked."""
        query, key, value, mask, dropout, causal = _arguments(node, 6)
        if mask is not None or dropout or causal or node.kwargs.get("enable_gqa"):
            return
        scale = node.kwargs.get("scale")
        scale = _shape(query)[-1] ** -0.5 if scale is None else scale
        with self.graph.inserting_before(node):
            scaled = self._call(_ATEN.mul.Tensor, query, scale)
            scores = self._call(_ATEN.matmul.default, scaled, self._call(_ATEN.transpose.int, key, -2, -1))
            y = self._call(_ATEN.matmul.default, self._call(_OURS.softmax.default, scores), value)
        self._put(node, y)

    def _dropout(self, node: Node) -> None:
        x, ratio, training = _arguments(node, 3)
        if not training or ratio == 0:
            node.replace_all_uses_with(x)
            self.graph.erase_node(node)
            return
        self._replace(node, _OURS.dropout.default, x, self._seed, ratio, self._dropouts)
        self._dropouts += 1

    # ---- nodes -------------------------------------------------------------------------------------------------------

    def _call(self, target: Any, *arguments: Any) -> Node:
        """A new node. Its shape is worked out at once: later substitutions look at it."""
        node = self.graph.call_function(target, arguments)
        values = torch.fx.node.map_arg(arguments, lambda each: each.meta["val"])
        mode = next((v.fake_mode for v in _tensors(values) if hasattr(v, "fake_mode")), None)
        if mode is not None and target is not _ATEN.copy_.default:
            with mode, torch.no_grad():
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
    layers = (_ATEN.linear, _ATEN.conv1d, _ATEN.conv2d, _ATEN.conv3d)
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


def _padding(padding: Any, kernel: tuple[int, ...], dilation: list[int]) -> list[int] | None:
    """Padding in numbers, or None if it differs between the two sides of an axis."""
    if padding == "valid":
        return [0] * len(kernel)
    if padding == "same":
        reach = [step * (size - 1) for size, step in zip(kernel, dilation, strict=True)]
        return None if any(each % 2 for each in reach) else [each // 2 for each in reach]
    return _spread(padding, 0, kernel)


def _tensors(values: Any) -> list[Any]:
    return [each for each in torch.utils._pytree.tree_leaves(values) if isinstance(each, torch.Tensor)]
