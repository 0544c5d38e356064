"""The training step as one plain graph of our own ops: forward, loss, backward and update.

We read the forward graph into a short list of layers and write that out twice: forward, then backward with the
gradients. Activations stay in the lanes layout of docs/explanation/native-ops.md from the input image to the loss. A
tensor that a step changes (values, other parameters, statistics) comes in under its name and leaves as `<name>.new`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sparsyedge.edge.model.methods import FLOOR_STEPS, Method
from sparsyedge.edge.model.reparametrise import positions_name
from sparsyedge.edge.model.training import PLAIN_SGD, Training
from sparsyedge.edge.native import OP_DOMAIN
from sparsyedge.edge.training.job_inputs import LABEL_SHIFT, THRESHOLD_OF_ALL
from sparsyedge.edge.training.sparse_session import LABELS_MIXED, MIX, THRESHOLD
from sparsyedge.export.fused.layers import Bias, Conv, Layer, MaxPool, MeanPool, Network, Norm
from sparsyedge.export.rewrite import BETA, DENSITY, OP_DOMAIN_VERSION, WEIGHT_DECAY, density_tensor
from sparsyedge.export.trace import INPUT_NAME, OPSET
from sparsyedge.export.update_nodes import LEARNING_RATE, UpdateNodes, beta_name, norm_attributes

__all__ = ["LEARNING_RATE", "build_plan_graph", "build_sparse_step"]

LABELS = "labels"
BATCH = "batch"
LOSS = "loss"
LANES = 16
"""Images side by side in one kernel tensor."""
IR_VERSION = 10
"""The newest that onnxruntime-training 1.19.2 reads."""


def build_plan_graph(network: Network) -> onnx.ModelProto:
    """The graph that runs once per round: it turns the positions of the non-zeros into plans for the convolutions."""
    nodes, inputs, outputs = [], [], []
    for conv in network.convs:
        name = conv.weight
        nodes.append(_node("SparsePlan", [f"{name}.index"], [f"{name}.plan", f"{name}.order"], **_geometry(conv)))
        inputs.append(_value(f"{name}.index", TensorProto.INT32, [f"{name}.nnz"]))
        outputs.append(_value(f"{name}.plan", TensorProto.INT32, [f"{name}.plan_size"]))
        outputs.append(_value(f"{name}.order", TensorProto.INT32, [f"{name}.nnz"]))
    return _model("sparse_plan", nodes, inputs, outputs, [])


def build_sparse_step(network: Network, method: Method, training: Training = PLAIN_SGD) -> onnx.ModelProto:
    """The graph of one training step over the plan's weights: the non-zeros, or all."""
    step = _Step(method, network, training, UpdateNodes(method, training))
    step.forward(network)
    step.backward(network)
    step.nodes += step.updates.finish()
    return step.model(network)


@dataclass
class _Step:
    """The step's nodes so far, and the gradients known so far, by tensor."""

    method: Method
    network: Network
    training: Training
    updates: UpdateNodes
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    gradients: dict[str, str] = field(default_factory=dict)
    shapes: list[onnx.ValueInfoProto] = field(default_factory=list)
    """Shapes of the gradients; the runtime may reuse memory between gradients of equal shape."""

    # ---- forward -----------------------------------------------------------------------------------------------------

    def forward(self, network: Network) -> None:
        self.nodes.append(helper.make_node("Shape", [LABELS], [BATCH]))
        first = network.layers[0].x
        self._emit("ToLanes", [INPUT_NAME], [first], pad_out=network.halo(first))
        for layer in network.layers:
            self._forward_layer(layer, network)
        self._emit_loss(network.layers[-1].y)
        self.gradients[network.layers[-1].y] = _gradient(network.layers[-1].y)

    def _emit_loss(self, logits: str) -> None:
        gradient = _gradient(logits)
        if self.training.label_shift:
            # A constant to the gradient, which is therefore that of the logits themselves.
            self._emit("AddBias", [logits, LABEL_SHIFT, BATCH], [f"{logits}.shifted"])
            logits = f"{logits}.shifted"
        smoothing = self.training.label_smoothing
        attributes = {"smoothing": smoothing} if smoothing else {}
        outputs = [LOSS, gradient]
        if self.training.mixup:
            self._emit("SoftmaxLossMixed", [logits, LABELS, LABELS_MIXED, MIX], outputs, **attributes)
        else:
            self._emit("SoftmaxLoss", [logits, LABELS], outputs, **attributes)

    def _forward_layer(self, layer: Layer, network: Network) -> None:
        match layer:
            case Conv():
                self._forward_conv(layer)
            case Norm():
                self._forward_norm(layer, network)
            case MeanPool():
                self._emit("MeanPool", [layer.x], [layer.y], pad_in=network.halo(layer.x))
            case MaxPool():
                geometry = {"pad_in": network.halo(layer.x), "pad_out": network.halo(layer.y)}
                self._emit("MaxPool", [layer.x], [layer.y, f"{layer.y}.argmax"], **_window(layer), **geometry)
            case Bias():
                self._emit("AddBias", [layer.x, layer.bias, BATCH], [layer.y], pad_in=network.halo(layer.x))

    def _forward_conv(self, conv: Conv) -> None:
        name = conv.weight
        theta = self._reparametrise(conv)
        self._emit("SparseConv", [conv.x, theta, f"{name}.plan"], [conv.y], pad_out=self.network.halo(conv.y))
        counted, share = self._saved_share(conv)
        inputs, outputs = [conv.x, f"{name}.plan", BATCH, *counted], [f"{name}.saved"]
        if self._hands_on_threshold(conv):
            inputs += [*([] if counted else [""]), f"{name}{THRESHOLD}"]
            outputs.append(f"{name}{THRESHOLD}.new")
        elif self.method.warms_up:
            inputs += [*([] if counted else [""]), THRESHOLD_OF_ALL]
        self._emit("SaveActivation", inputs, outputs, **share)

    def _reparametrise(self, conv: Conv) -> str:
        """Turn a layer's values into the weights it computes with; returns their name."""
        name = conv.weight
        if self.method.reparametrisation == "spectral":
            inputs = [f"{name}.values", positions_name(name)]
            self._emit("SpectralProp", inputs, [f"{name}.theta"], **self._matrix(conv))
        else:
            self._emit("PowerProp", [f"{name}.values", self._beta(name), WEIGHT_DECAY], [f"{name}.theta"])
        if not self._prunes_weights(conv):
            return f"{name}.theta"
        self._emit("PruneActivation", [f"{name}.theta", DENSITY], [f"{name}.pruned_theta"])
        return f"{name}.pruned_theta"

    def _matrix(self, conv: Conv) -> dict[str, int | float]:
        """A layer's weights as a matrix with a row per output channel, and which norm of it to take."""
        return {**_rows_and_columns(conv), **norm_attributes(self.method)}

    def _prunes_weights(self, conv: Conv) -> bool:
        return self.method.prune_weights != "none" and conv is not self.network.convs[0]

    def _saved_share(self, conv: Conv) -> tuple[list[str], dict[str, int]]:
        """An extra input and attributes that set how much of a layer's input its weight gradient sees."""
        if not self.method.prune_activations:
            return [], {"prune": 0}
        if self.method.activation_density == "target":
            first = conv is self.network.convs[0]
            density = self.method.density
            return [], {"prune": 0} if first else {"kept": density.numerator, "of": density.denominator}
        # If the values include zeros, the plan cannot count them.
        counted = [] if self.method.zero_grad_at_zero else [f"{conv.weight}.values"]
        return counted, {"prune": 1, "least": int(self.method.least_activations * FLOOR_STEPS)}

    def _hands_on_threshold(self, conv: Conv) -> bool:
        """Whether the layer keeps the input threshold of the round's first step; linear layers never do."""
        method = self.method
        return method.prune_activations and method.activation_threshold == "round" and not conv.linear

    def _forward_norm(self, norm: Norm, network: Network) -> None:
        outputs = [norm.y, f"{norm.y}.mean", f"{norm.y}.inv_std", f"{norm.mean}.new", f"{norm.variance}.new"]
        self._emit(
            "BatchNormAct",
            [
                norm.x,
                norm.gamma,
                norm.beta,
                norm.mean,
                norm.variance,
                BATCH,
                *([norm.residual] if norm.residual else []),
            ],
            [*outputs, *([f"{norm.y}.positive"] if norm.relu else [])],
            epsilon=norm.epsilon,
            momentum=norm.momentum,
            relu=int(norm.relu),
            pad_in=network.halo(norm.x),
            pad_out=network.halo(norm.y),
            **({"cap": norm.cap} if math.isfinite(norm.cap) else {}),
        )

    # ---- backward ----------------------------------------------------------------------------------------------------

    def backward(self, network: Network) -> None:
        for layer in reversed(network.layers):
            self._backward_layer(layer, network)

    def _backward_layer(self, layer: Layer, network: Network) -> None:
        dy = self.gradients.pop(layer.y)
        match layer:
            case Conv():
                self._backward_conv(layer, dy)
            case Norm():
                self._backward_norm(layer, dy, network)
            case MeanPool():
                height, width = network.plane(layer.x)
                geometry = {"in_h": height, "in_w": width, "pad_out": network.gradient_halo(layer.x)}
                dx = self._name_gradient(layer.x)
                self._emit("MeanPoolGrad", [dy], [dx], **geometry)
                self._add_gradient(layer.x, dx)
            case MaxPool():
                height, width = network.plane(layer.x)
                geometry = {"in_h": height, "in_w": width, "pad_in": network.gradient_halo(layer.x)}
                dx = self._name_gradient(layer.x)
                self._emit("MaxPoolGrad", [dy, f"{layer.y}.argmax"], [dx], **_window(layer), **geometry)
                self._add_gradient(layer.x, dx)
            case Bias():
                self._emit("AddBiasGrad", [dy], [f"{layer.bias}.grad"], pad_in=network.gradient_halo(layer.x))
                self._update(layer.bias, network)
                self._add_gradient(layer.x, dy)

    def _backward_conv(self, conv: Conv, dy: str) -> None:
        name = conv.weight
        # The weight gradient first: it frees the saved activation before we allocate the input gradient.
        self._emit("SparseConvGradWeight", [f"{name}.saved", dy, f"{name}.plan"], [f"{name}.theta_grad"])
        # All weights get the gradient, pruned ones too, as if there were no pruning.
        self.nodes += self.updates.weight(name, **_rows_and_columns(conv))
        if conv.needs_input_gradient:
            before = self.gradients.pop(conv.x, None)
            theta = f"{name}.pruned_theta" if self._prunes_weights(conv) else f"{name}.theta"
            inputs = [dy, theta, f"{name}.plan", *([before] if before else [])]
            dx = self._name_gradient(conv.x, name)
            self._emit("SparseConvGradInput", inputs, [dx])
            self._add_gradient(conv.x, dx)

    def _backward_norm(self, norm: Norm, dy: str, network: Network) -> None:
        dx = self._name_gradient(norm.x)
        outputs = [dx, f"{norm.gamma}.grad", f"{norm.beta}.grad"]
        residual = self._residual_gradient(norm, dy)
        if residual not in (None, dy):
            outputs.append(residual)
        inputs = [dy, norm.x, norm.gamma, f"{norm.y}.mean", f"{norm.y}.inv_std", BATCH]
        self._emit(
            "BatchNormActGrad",
            [*inputs, *([f"{norm.y}.positive"] if norm.relu else [])],
            outputs,
            pad_in=network.halo(norm.x),
            pad_out=network.gradient_halo(norm.x),
            pad_residual=network.gradient_halo(norm.residual) if norm.residual else 0,
        )
        self._update(norm.gamma, network)
        self._update(norm.beta, network)
        self._add_gradient(norm.x, dx)
        if norm.residual and residual:
            self._add_gradient(norm.residual, residual)

    def _residual_gradient(self, norm: Norm, dy: str) -> str | None:
        """The name of the residual's gradient: without ReLU that is dy itself, if the halos agree."""
        if norm.residual is None:
            return None
        same_halo = self.network.gradient_halo(norm.residual) == self.network.gradient_halo(norm.y)
        return dy if same_halo and not norm.relu else self._name_gradient(norm.residual, norm.y)

    def _update(self, parameter: str, network: Network) -> None:
        self.nodes += self.updates.parameter(parameter, [network.vectors[parameter]])

    def _beta(self, weight: str) -> str:
        return beta_name(self.method, weight)

    def _name_gradient(self, tensor: str, part: str = "") -> str:
        """A new name for a tensor's gradient; `part` distinguishes the contributions of several consumers."""
        taken = {value.name for value in self.shapes}
        name = _gradient(tensor) + (f".{part}" if part else "")
        while name in taken:
            name += ".more"
        height, width = (size + 2 * self.network.gradient_halo(tensor) for size in self.network.plane(tensor))
        shape: list[int | str] = ["groups", self.network.channels[tensor], height, width, LANES]
        self.shapes.append(_value(name, TensorProto.FLOAT, shape))
        return name

    def _add_gradient(self, tensor: str, gradient: str) -> None:
        """Count what one consumer contributes to a tensor's gradient."""
        before = self.gradients.get(tensor)
        if before is None:
            self.gradients[tensor] = gradient
            return
        total = self.gradients[tensor] = self._name_gradient(tensor, "sum")
        self.nodes.append(helper.make_node("Add", [before, gradient], [total], name=f"{total}.Add"))

    def _emit(self, operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: int | float) -> None:
        self.nodes.append(_node(operator, inputs, outputs, **attributes))

    # ---- the whole ---------------------------------------------------------------------------------------------------

    def model(self, network: Network) -> onnx.ModelProto:
        inputs = [
            _value(INPUT_NAME, TensorProto.FLOAT, [BATCH, *network.input_shape]),
            _value(LABELS, TensorProto.INT64, [BATCH]),
            _value(LEARNING_RATE, TensorProto.FLOAT, [1]),
        ]
        if self.training.mixup:
            inputs.append(_value(LABELS_MIXED, TensorProto.INT64, [BATCH]))
            inputs.append(_value(MIX, TensorProto.FLOAT, [1]))
        if self.training.label_shift:
            inputs.append(_value(LABEL_SHIFT, TensorProto.FLOAT, [network.channels[network.layers[-1].y]]))
        if self.method.warms_up:
            inputs.append(_value(THRESHOLD_OF_ALL, TensorProto.FLOAT, [1]))
        outputs = [_value(LOSS, TensorProto.FLOAT, [1])]
        for conv in network.convs:
            name = conv.weight
            inputs.append(_value(f"{name}.plan", TensorProto.INT32, [f"{name}.plan_size"]))
            inputs.append(_value(f"{name}.values", TensorProto.FLOAT, [f"{name}.nnz"]))
            outputs.append(_value(f"{name}.values.new", TensorProto.FLOAT, [f"{name}.nnz"]))
            if self._beta(name) != BETA:
                inputs.append(_value(self._beta(name), TensorProto.FLOAT, [1]))
            if self.method.reparametrisation == "spectral":
                inputs.append(_value(positions_name(name), TensorProto.INT32, [f"{name}.nnz"]))
            if self._hands_on_threshold(conv):
                inputs.append(_value(f"{name}{THRESHOLD}", TensorProto.FLOAT, [1]))
                outputs.append(_value(f"{name}{THRESHOLD}.new", TensorProto.FLOAT, [1]))
        for name, size in network.vectors.items():
            inputs.append(_value(name, TensorProto.FLOAT, [size]))
            outputs.append(_value(f"{name}.new", TensorProto.FLOAT, [size]))
        constants = [
            numpy_helper.from_array(np.array([value], dtype=np.float32), name)
            for name, value in ((BETA, self.method.beta), (WEIGHT_DECAY, self.method.weight_decay))
        ]
        if self.method.prune_weights != "none":
            constants.append(density_tensor(self.method.density))
        inputs += self.updates.inputs
        outputs += self.updates.outputs
        constants += self.updates.constants
        model = _model("sparse_step", self.nodes, inputs, outputs, constants)
        model.graph.value_info.extend(self.shapes)
        return model


def _gradient(tensor: str) -> str:
    return f"{tensor}.grad"


def _geometry(conv: Conv) -> dict[str, int]:
    return {
        "oc": conv.channels_out,
        "ic": conv.channels_in,
        "kernel_h": conv.kernel[0],
        "kernel_w": conv.kernel[1],
        "groups": conv.groups,
        "stride": conv.stride,
        "pad_h": conv.pad[0],
        "pad_w": conv.pad[1],
        "in_h": conv.plane_in[0],
        "in_w": conv.plane_in[1],
        "pad_in": conv.halo_in,
        "pad_out": conv.halo_out,
        "grad_input": int(conv.needs_input_gradient),
    }


def _rows_and_columns(conv: Conv) -> dict[str, int]:
    return {"rows": conv.channels_out, "columns": conv.weights_per_row}


def _window(pool: MaxPool) -> dict[str, int]:
    return {"kernel": pool.kernel, "stride": pool.stride, "pad": pool.pad}


def _node(operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: int | float) -> onnx.NodeProto:
    node = helper.make_node(operator, list(inputs), list(outputs), name=f"{outputs[0]}.{operator}", domain=OP_DOMAIN)
    node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    return node


def _value(name: str, kind: int, shape: Sequence[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(shape))


def _model(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: Sequence[onnx.TensorProto],
) -> onnx.ModelProto:
    graph = helper.make_graph(list(nodes), name, list(inputs), list(outputs), initializer=list(constants))
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(OP_DOMAIN, OP_DOMAIN_VERSION)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="sparsyedge")
