"""Graph surgery: turns a stock ONNX graph into one that trains sparsely.

Functions change their model in place and touch only what they name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction

import numpy as np
import onnx
from onnx import helper, numpy_helper

from sparsyedge.edge.errors import ArtifactError
from sparsyedge.edge.native import OP_DOMAIN

__all__ = [
    "BETA",
    "DENSITY",
    "OP_DOMAIN_VERSION",
    "PRUNED_INPUT",
    "WEIGHT_DECAY",
    "density_tensor",
    "drop_counters",
    "freeze_batch_norms",
    "import_domain",
    "insert_activation_pruning",
    "insert_gradient_masks",
    "insert_weight_pruning",
    "keep_outputs",
    "name_running_statistics",
    "redirect",
]

OP_DOMAIN_VERSION = 1
BETA = "sparsyedge.beta"
WEIGHT_DECAY = "sparsyedge.weight_decay"
ZERO = "sparsyedge.zero"
DENSITY = "sparsyedge.density"
PRUNED_INPUT = ".pruned_input"
"""Suffix for the pruned copy of a layer's input; the weight's name comes before it."""
COUNTED_NAME = re.compile(r"onnx::(\w+)::\d+")


def name_running_statistics(model: onnx.ModelProto) -> dict[str, str]:
    """Name each BatchNorm's new running statistics after the old ones; returns the graph outputs by parameter name."""
    outputs: dict[str, str] = {}
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            for position in (1, 2):
                old = node.input[position + 2]
                outputs[old] = node.output[position] = f"{old}.new"
    return outputs


def drop_counters(model: onnx.ModelProto) -> None:
    """Rename `onnx::loss::7` to `loss`: the counter is per process, and equal exports should have equal hashes."""
    graph = model.graph
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = COUNTED_NAME.sub(r"\1", value.name)
    for node in graph.node:
        node.name = COUNTED_NAME.sub(r"\1", node.name)
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                names[index] = COUNTED_NAME.sub(r"\1", name)


def freeze_batch_norms(model: onnx.ModelProto) -> None:
    """Switch BatchNorm from batch to running statistics, for inference and evaluation."""
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            del node.output[1:]
            kept = [attribute for attribute in node.attribute if attribute.name == "epsilon"]
            del node.attribute[:]
            node.attribute.extend(kept)


def keep_outputs(model: onnx.ModelProto, names: Iterable[str]) -> None:
    """Drop every graph output that is not named."""
    wanted = set(names)
    kept = [output for output in model.graph.output if output.name in wanted]
    del model.graph.output[:]
    model.graph.output.extend(kept)


def insert_activation_pruning(
    model: onnx.ModelProto, prunable: Iterable[str], *, density: Fraction | None = None, least: int = 0
) -> None:
    """Feed each weight gradient from a pruned copy of its layer's input; nothing else in the graph sees the copy.

    The copy is as dense as the layer's weights, or has the given density in all layers but the first. ConvGrad reads X
    only for the weight gradient and W only for the input gradient, so the copy changes only what the method asks for. A
    linear layer computes its weight gradient in a separate Gemm. We always keep `least` of 10,000 values.
    """
    graph = model.graph
    layers = _layer_inputs(graph.node, prunable)
    if density is not None:
        layers.pop(next(iter(layers)), None)
        _add_density(graph, density)
    unseen = set(layers)
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        weight = _differentiated_weight(node, layers)
        if weight is not None:
            activation = layers[weight]
            pruned = f"{weight}{PRUNED_INPUT}"
            nodes.append(
                helper.make_node(
                    "PruneActivation",
                    [activation, weight if density is None else DENSITY],
                    [pruned],
                    name=f"{weight}.PruneActivation",
                    domain=OP_DOMAIN,
                    least=least,
                )
            )
            redirect(node, {activation: pruned})
            unseen.discard(weight)
        nodes.append(node)
    if unseen:
        raise ArtifactError(
            f"the training graph has no weight gradient of {sorted(unseen)[0]}, so its input cannot be pruned; "
            f"the layers that can be pruned are 2-d convolutions and linear layers"
        )
    _replace_nodes(graph, nodes)
    import_domain(model)


def insert_weight_pruning(model: onnx.ModelProto, prunable: Iterable[str], density: Fraction) -> None:
    """Make every layer but the first compute with its largest weights, forward and backward.

    All weights get the gradient of the pruned ones, as if there were no pruning.
    """
    graph = model.graph
    _, *others = _layer_inputs(graph.node, prunable)
    pruned = {f"{name}.theta": f"{name}.pruned_theta" for name in others}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        redirect(node, pruned)
        nodes.append(node)
        for output in set(node.output) & set(pruned):
            name = f"{output}.PruneActivation"
            nodes.append(
                helper.make_node("PruneActivation", [output, DENSITY], [pruned[output]], name=name, domain=OP_DOMAIN)
            )
    _replace_nodes(graph, nodes)
    _add_density(graph, density)
    import_domain(model)


def density_tensor(density: Fraction) -> onnx.TensorProto:
    """A vector of this density: PruneActivation takes the share to keep from a tensor."""
    kept = np.zeros(density.denominator, dtype=np.float32)
    kept[: density.numerator] = 1
    return numpy_helper.from_array(kept, DENSITY)


def _add_density(graph: onnx.GraphProto, density: Fraction) -> None:
    if DENSITY not in {tensor.name for tensor in graph.initializer}:
        graph.initializer.append(density_tensor(density))


def insert_gradient_masks(model: onnx.ModelProto, *, biases: bool) -> None:
    """Clear the gradient of every weight that is exactly zero, before weight decay, which adds nothing to zero.

    With `biases`, do the same to all other parameters that train.
    """
    masked_operators = ("PowerPropGrad", "DecayGrad") if biases else ("PowerPropGrad",)
    graph = model.graph
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type in masked_operators:
            gradient, weight = node.input[0], node.input[1]
            absent, masked = f"{weight}.is_zero", f"{weight}.masked_grad"
            nodes.append(helper.make_node("Equal", [weight, ZERO], [absent], name=f"{weight}.Equal"))
            nodes.append(helper.make_node("Where", [absent, ZERO, gradient], [masked], name=f"{weight}.Where"))
            node.input[0] = masked
        nodes.append(node)
    _replace_nodes(graph, nodes)
    graph.initializer.append(numpy_helper.from_array(np.array(0, dtype=np.float32), ZERO))


def _replace_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Replace the graph's nodes; the new list may contain old ones."""
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _layer_inputs(nodes: Iterable[onnx.NodeProto], prunable: Iterable[str]) -> dict[str, str]:
    """The input activation of each prunable weight, by the weight's name, in forward order."""
    thetas = {f"{name}.theta": name for name in prunable}
    inputs: dict[str, str] = {}
    for node in nodes:
        if node.op_type in ("Conv", "Gemm") and len(node.input) > 1 and node.input[1] in thetas:
            # A linear layer's backward is a Gemm with the same weight; the forward Gemm comes first.
            inputs.setdefault(thetas[node.input[1]], node.input[0])
    return inputs


def _differentiated_weight(node: onnx.NodeProto, layers: Mapping[str, str]) -> str | None:
    """The weight whose gradient this node computes from the layer's input; None for other nodes."""
    output: str
    for output in node.output:
        weight = output.removesuffix(".theta_grad")
        if weight != output and weight in layers and layers[weight] in node.input:
            return weight
    return None


def redirect(node: onnx.NodeProto, renamed: Mapping[str, str]) -> None:
    for index, name in enumerate(node.input):
        node.input[index] = renamed.get(name, name)


def import_domain(model: onnx.ModelProto) -> None:
    if OP_DOMAIN not in {opset.domain for opset in model.opset_import}:
        model.opset_import.append(helper.make_opsetid(OP_DOMAIN, OP_DOMAIN_VERSION))
