"""Writes the step and plan graphs of the general layout from a traced graph.

The traced graph has whole weights as inputs and their gradients as outputs. Here every prunable weight becomes a vector
of its values with a plan, every layer a choice between its non-zeros and a dense product, and every gradient an update.
The graphs keep the contract of the fused layout, so one kind of session runs both (docs/reference/artifacts.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.methods import FLOOR_STEPS, Method
from sparsyedge.edge.model.reparametrise import positions_name
from sparsyedge.edge.model.training import Training
from sparsyedge.edge.native import OP_DOMAIN
from sparsyedge.edge.training.job_inputs import THRESHOLD_OF_ALL
from sparsyedge.edge.training.sparse_session import SPARSE
from sparsyedge.export.general.expand import PRUNES_INPUTS, Choice, Expansion, Weight
from sparsyedge.export.general.onnx_program import IR_VERSION, OPSET, TRACED_DOMAIN
from sparsyedge.export.general.substitute import Layers
from sparsyedge.export.rewrite import BETA, DENSITY, OP_DOMAIN_VERSION, WEIGHT_DECAY, density_tensor
from sparsyedge.export.update_nodes import LEARNING_RATE, UpdateNodes, beta_name, norm_attributes

__all__ = ["Network", "build_plan_graph", "build_step_graph"]

NOTHING = "sparsyedge.zero"


@dataclass(frozen=True)
class Network:
    """A traced graph and what its tensors are."""

    traced: onnx.ModelProto
    layers: Layers
    shapes: Mapping[str, tuple[int, ...]]
    """Of every parameter and buffer."""
    trainable: tuple[str, ...]
    prunable: tuple[str, ...]
    """In the order of the parameters."""


def build_plan_graph(network: Network) -> onnx.ModelProto:
    """The graph that runs once per round and turns the positions of the non-zeros into plans."""
    nodes, inputs, outputs = [], [], []
    for name in network.prunable:
        rows, columns = _matrix(network.shapes[name])
        plan, order = f"{name}.plan", f"{name}.order"
        nodes.append(_ours("LinearPlan", [f"{name}.index"], [plan, order], rows=rows, columns=columns))
        inputs.append(_value(f"{name}.index", TensorProto.INT32, [f"{name}.nnz"]))
        outputs += [
            _value(plan, TensorProto.INT32, [f"{plan}_size"]),
            _value(order, TensorProto.INT32, [f"{name}.nnz"]),
        ]
    return _model("sparse_plan", nodes, inputs, outputs, [])


def build_step_graph(network: Network, method: Method, training: Training) -> onnx.ModelProto:
    """The graph of one training step; raises ConfigError for what this layout cannot do."""
    _require_possible(method)
    return _Step(network, method, training).model()


def _require_possible(method: Method) -> None:
    if method.prune_activations and method.activation_threshold == "round":
        raise ConfigError(
            'key `method.activation_threshold` has value "round": only networks of the fused layout can keep a '
            'threshold between steps; allowed here: "step"'
        )


class _Step:
    """The step's graph under construction."""

    def __init__(self, network: Network, method: Method, training: Training) -> None:
        self._network = network
        self._method = method
        self._updates = UpdateNodes(method, training)
        self._sparse = [name for name in network.prunable if name in network.layers.sparse]
        self._nodes: list[onnx.NodeProto] = []

    def model(self) -> onnx.ModelProto:
        traced = self._network.traced.graph
        if self._method.warms_up:
            self._nodes.append(helper.make_node("Less", [THRESHOLD_OF_ALL, NOTHING], [PRUNES_INPUTS]))
        for name in self._network.prunable:
            self._nodes += self._theta(name)
        unnamed = {name: Weight(name, shape) for name, shape in self._network.layers.unnamed.items()}
        expansion = Expansion({name: self._weight(name) for name in self._network.layers} | unnamed)
        gradients = {f"{name}.grad": name for name in self._network.trainable}
        for node in traced.node:
            self._nodes += expansion.expand(node) if node.domain == TRACED_DOMAIN else [node]
            for output in node.output:
                if output in gradients:
                    self._nodes += self._update(gradients[output])
        self._nodes += self._updates.finish()
        return self._assemble(traced)

    # ---- weights -----------------------------------------------------------------------------------------------------

    def _theta(self, name: str) -> list[onnx.NodeProto]:
        """From a weight's values to what its layer computes with; dense where the layer cannot use the values."""
        method, theta = self._method, f"{name}.theta"
        rows, columns = _matrix(self._network.shapes[name])
        if method.reparametrisation == "spectral":
            inputs = [f"{name}.values", positions_name(name)]
            nodes = [_ours("SpectralProp", inputs, [theta], rows=rows, columns=columns, **norm_attributes(method))]
        else:
            nodes = [_ours("PowerProp", [f"{name}.values", beta_name(method, name), WEIGHT_DECAY], [theta])]
        if self._prunes(name):
            nodes.append(_ours("PruneActivation", [theta, DENSITY], [self._used(name)]))
        if name not in self._network.layers.sparse:
            nodes += self._dense(name)
        return nodes

    def _dense(self, name: str) -> list[onnx.NodeProto]:
        """The whole tensor under its own name, for everything that reads it."""
        flat, shape = f"{name}.matrix", f"{name}.shape"
        return [
            _ours("Densify", [self._used(name), f"{name}.plan"], [flat]),
            helper.make_node("Reshape", [flat, shape], [name], name=f"{name}.Reshape"),
        ]

    def _used(self, name: str) -> str:
        return f"{name}.pruned_theta" if self._prunes(name) else f"{name}.theta"

    def _prunes(self, name: str) -> bool:
        return self._method.prune_weights != "none" and name != self._network.prunable[0]

    def _weight(self, name: str) -> Weight:
        shape = self._network.shapes[name]
        if name not in self._network.prunable:
            return Weight(name, shape)
        choice = Choice(f"{name}{SPARSE}", self._used(name), f"{name}.plan") if name in self._sparse else None
        return Weight(
            name,
            shape,
            choice=choice,
            saving=self._saving(name),
            counted=self._counted(name),
            warms_up=self._method.warms_up,
        )

    def _saving(self, name: str) -> dict[str, int]:
        """How much of a layer's input its weight gradient sees, as attributes of SaveInput."""
        method = self._method
        if not method.prune_activations:
            return {"prune": 0}
        if method.activation_density == "target":
            density = method.density
            is_first = name == self._network.prunable[0]
            return {"prune": 0} if is_first else {"kept": density.numerator, "of": density.denominator}
        return {"prune": 1, "least": int(method.least_activations * FLOOR_STEPS)}

    def _counted(self, name: str) -> str | None:
        """The values whose zeros set the density of the input, if the plan cannot tell."""
        method = self._method
        counts = method.prune_activations and method.activation_density == "weights" and not method.zero_grad_at_zero
        return f"{name}.values" if counts else None

    def _update(self, name: str) -> list[onnx.NodeProto]:
        if name not in self._network.prunable:
            return self._updates.parameter(name, self._network.shapes[name])
        rows, columns = _matrix(self._network.shapes[name])
        nodes = self._updates.weight(name, rows=rows, columns=columns)
        if name not in self._sparse:
            nodes.insert(0, _ours("Sparsify", [f"{name}.grad", f"{name}.plan"], [f"{name}.theta_grad"]))
        return nodes

    # ---- the whole ---------------------------------------------------------------------------------------------------

    def _assemble(self, traced: onnx.GraphProto) -> onnx.ModelProto:
        prunable, shapes = set(self._network.prunable), self._network.shapes
        used = {name for node in self._nodes for name in _reads(node)}
        inputs = [each for each in traced.input if each.name not in prunable and each.name in used]
        inputs.append(_value(LEARNING_RATE, TensorProto.FLOAT, [1]))
        if self._method.warms_up:
            inputs.append(_value(THRESHOLD_OF_ALL, TensorProto.FLOAT, [1]))
        outputs = [_value("loss", TensorProto.FLOAT, [])]
        for name in self._network.prunable:
            values, size = f"{name}.values", f"{name}.nnz"
            inputs.append(_value(f"{name}.plan", TensorProto.INT32, [f"{name}.plan_size"]))
            inputs.append(_value(values, TensorProto.FLOAT, [size]))
            outputs.append(_value(f"{values}.new", TensorProto.FLOAT, [size]))
            if name in self._sparse:
                inputs.append(_value(f"{name}{SPARSE}", TensorProto.BOOL, [1]))
            if beta_name(self._method, name) != BETA:
                inputs.append(_value(beta_name(self._method, name), TensorProto.FLOAT, [1]))
            if self._method.reparametrisation == "spectral":
                inputs.append(_value(positions_name(name), TensorProto.INT32, [size]))
        for name in self._network.trainable:
            if name not in prunable:
                outputs.append(_value(f"{name}.new", TensorProto.FLOAT, shapes[name]))
        trainable = set(self._network.trainable)
        outputs += [each for each in traced.output if each.name.endswith(".new") and each.name[:-4] not in trainable]
        constants = [*traced.initializer, *self._constants(), *self._updates.constants]
        return _model(
            "sparse_step", self._nodes, [*inputs, *self._updates.inputs], [*outputs, *self._updates.outputs], constants
        )

    def _constants(self) -> Iterable[onnx.TensorProto]:
        yield numpy_helper.from_array(np.array([self._method.beta], dtype=np.float32), BETA)
        yield numpy_helper.from_array(np.array([self._method.weight_decay], dtype=np.float32), WEIGHT_DECAY)
        if self._method.prune_weights != "none" or self._method.activation_density == "target":
            yield density_tensor(self._method.density)
        if self._method.warms_up:
            yield numpy_helper.from_array(np.zeros(1, dtype=np.float32), NOTHING)
        for name in self._network.prunable:
            if name not in self._sparse:
                yield numpy_helper.from_array(np.array(self._network.shapes[name], dtype=np.int64), f"{name}.shape")


def _reads(node: onnx.NodeProto) -> Iterable[str]:
    """The tensors that a node reads, those of its subgraphs included."""
    yield from node.input
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            for inner in attribute.g.node:
                yield from _reads(inner)


def _matrix(shape: Sequence[int]) -> tuple[int, int]:
    """A weight as a matrix with a row per output."""
    return shape[0], math.prod(shape[1:])


def _ours(operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, inputs, outputs, name=f"{outputs[0]}.{operator}", domain=OP_DOMAIN, **attributes)


def _value(name: str, element: int, shape: Sequence[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, list(shape))


def _model(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: Sequence[onnx.TensorProto],
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, name, inputs, outputs, constants)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(OP_DOMAIN, OP_DOMAIN_VERSION)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="sparsyedge")
