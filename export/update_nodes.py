"""The end of every step graph: from gradients to new values, for every method and optimizer.

Both graph writers use it in the same way:

    updates = UpdateNodes(method, training)
    nodes += updates.weight("conv1.weight", rows=64, columns=27)      # once "conv1.weight.theta_grad" has been written
    nodes += updates.parameter("bn1.bias", [64])                      # once "bn1.bias.grad" has been written
    nodes += updates.finish()                                         # after the last of them
    inputs += updates.inputs; outputs += updates.outputs; constants += updates.constants

A prunable weight w comes in as its values, `{w}.values` with dimension `{w}.nnz`; its gradient is that of theta, of the
same shape. Every other trainable parameter p comes in under its name, with gradient `{p}.grad`. The new values leave as
`{w}.values.new` and `{p}.new`. The optimizer's memory lies beside what it belongs to: `{t}.momentum`, or
`{t}.first_moment` and `{t}.second_moment`, where {t} is `{w}.values` or p; `optimizer_steps` counts the steps.
`inputs` and `outputs` hold these tensors only; the writer declares values and parameters itself. It also supplies the
constants BETA and WEIGHT_DECAY (export/rewrite.py) and the input `learning_rate`, and for some methods the inputs of
`exponent_name` and `positions_name`.

Without clipping a tensor is updated at once, which frees its gradient early. With clipping, all updates wait for the
norm of all gradients, in `finish`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sparsyedge.edge.model.methods import Method
from sparsyedge.edge.model.reparametrise import NORM_FLOOR, exponent_name, positions_name
from sparsyedge.edge.model.training import OPTIMIZER_STEPS, Training
from sparsyedge.edge.native import OP_DOMAIN
from sparsyedge.export.rewrite import BETA, WEIGHT_DECAY

__all__ = ["LEARNING_RATE", "UpdateNodes", "beta_name", "norm_attributes"]

LEARNING_RATE = "learning_rate"
CLIP_SCALE = "sparsyedge.clip_scale"
CLIP_NORMS = "sparsyedge.gradient_norms"
NO_CLIP = "sparsyedge.no_clip"
NO_DECAY = "sparsyedge.no_decay"
ONE_STEP = "sparsyedge.one_step"
ZERO = "sparsyedge.zero_bias"

Nodes = list[onnx.NodeProto]
Shape = Sequence[int | str]


def beta_name(method: Method, weight: str) -> str:
    """The name of a layer's exponent: its own, which the session supplies, or the shared one."""
    return exponent_name(weight) if method.reparametrisation == "auto-beta" else BETA


def norm_attributes(method: Method) -> dict[str, int | float]:
    """Which norm the ops of `spectral` divide by."""
    return {"floor": NORM_FLOOR} | ({"exact": 1} if method.has_exact_norm else {})


class UpdateNodes:
    """The update of every trainable tensor of one graph."""

    def __init__(self, method: Method, training: Training) -> None:
        self._method = method
        self._training = training
        self._waiting: list[tuple[str, str, Shape]] = []
        """Tensor, gradient and shape of the updates that wait for the norm of all gradients."""
        self._is_first = True
        self.inputs: list[onnx.ValueInfoProto] = []
        """The optimizer's memory."""
        self.outputs: list[onnx.ValueInfoProto] = []
        """The same after the step."""
        self.constants: list[onnx.TensorProto] = []

    def weight(self, weight: str, *, rows: int, columns: int) -> Nodes:
        """Update a prunable weight, as a matrix with a row per output; reads `{weight}.theta_grad`."""
        values, theta_grad, method = f"{weight}.values", f"{weight}.theta_grad", self._method
        is_spectral = method.reparametrisation == "spectral"
        matrix = {"rows": rows, "columns": columns, **norm_attributes(method)} if is_spectral else {}
        if self._is_plain:
            # The last factor of the gradient, weight decay and the update in one pass.
            operator, layer = (
                ("SpectralStep", positions_name(weight))
                if is_spectral
                else ("PowerPropStep", beta_name(method, weight))
            )
            inputs = [values, theta_grad, layer, WEIGHT_DECAY, LEARNING_RATE]
            return [_ours(operator, inputs, [f"{values}.new"], **matrix)]
        if method.reparametrisation == "none":
            return self._update(values, theta_grad, [f"{weight}.nnz"])
        gradient = f"{values}.grad"
        if is_spectral:
            chain = _ours("SpectralGrad", [values, theta_grad, positions_name(weight)], [gradient], **matrix)
        else:
            self._constant(NO_DECAY, 0.0)
            chain = _ours("PowerPropGrad", [theta_grad, values, beta_name(method, weight), NO_DECAY], [gradient])
        return [chain, *self._update(values, gradient, [f"{weight}.nnz"])]

    def parameter(self, name: str, shape: Shape) -> Nodes:
        """Update any other trainable parameter; reads `{name}.grad`."""
        gradient = f"{name}.grad"
        if not self._method.freezes_zero_biases:
            return self._update(name, gradient, shape)
        self._constant(ZERO, 0.0)
        absent, masked = f"{name}.is_zero", f"{name}.masked_grad"
        return [
            helper.make_node("Equal", [name, ZERO], [absent], name=f"{name}.Equal"),
            helper.make_node("Where", [absent, ZERO, gradient], [masked], name=f"{name}.Where"),
            *self._update(name, masked, shape),
        ]

    def finish(self) -> Nodes:
        """The updates that had to wait; call it once, after all others."""
        if not self._waiting:
            return []
        norms = [f"{gradient}.norm" for _, gradient, _ in self._waiting]
        nodes = [
            _ours("GradientNorm", [gradient], [norm])
            for (_, gradient, _), norm in zip(self._waiting, norms, strict=True)
        ]
        nodes.append(helper.make_node("Concat", norms, [CLIP_NORMS], name=f"{CLIP_NORMS}.Concat", axis=0))
        nodes.append(_ours("ClipScale", [CLIP_NORMS], [CLIP_SCALE], max_norm=float(self._training.clip_norm or 0)))
        for tensor, gradient, shape in self._waiting:
            nodes += self._step(tensor, gradient, shape, scale=CLIP_SCALE)
        self._waiting = []
        return nodes

    @property
    def _is_plain(self) -> bool:
        return self._training.optimizer == "sgd" and self._training.clip_norm is None

    def _update(self, tensor: str, gradient: str, shape: Shape) -> Nodes:
        if self._training.clip_norm is not None:
            self._waiting.append((tensor, gradient, shape))
            return []
        if self._training.optimizer != "sgd":
            self._constant(NO_CLIP, 1.0)
        return self._step(tensor, gradient, shape, scale=NO_CLIP)

    def _step(self, tensor: str, gradient: str, shape: Shape, *, scale: str) -> Nodes:
        training, new = self._training, f"{tensor}.new"
        if training.optimizer == "sgd":
            clipped = gradient if scale == NO_CLIP else f"{gradient}.clipped"
            step = _ours("DecayStep", [tensor, clipped, WEIGHT_DECAY, LEARNING_RATE], [new])
            if clipped == gradient:
                return [step]
            return [helper.make_node("Mul", [gradient, scale], [clipped], name=f"{clipped}.Mul"), step]
        memory = [f"{tensor}{suffix}" for suffix in training.state_suffixes]
        for name in memory:
            self._carry(name, shape)
        inputs = [tensor, gradient, *memory, scale, WEIGHT_DECAY, LEARNING_RATE]
        outputs = [new, *(f"{name}.new" for name in memory)]
        if training.optimizer == "momentum":
            attributes = {"momentum": training.momentum, "nesterov": int(training.nesterov)}
            return [_ours("MomentumStep", inputs, outputs, **attributes)]
        beta1, beta2 = training.betas
        attributes = {"beta1": beta1, "beta2": beta2, "epsilon": training.epsilon}
        return [
            *self._count_steps(),
            _ours("AdamWStep", [*inputs, f"{OPTIMIZER_STEPS}.new"], outputs, **attributes),
        ]

    def _count_steps(self) -> Nodes:
        """The number of this step, counted from 1; written once."""
        if not self._is_first:
            return []
        self._is_first = False
        self._constant(ONE_STEP, 1.0)
        self._carry(OPTIMIZER_STEPS, [1])
        count = f"{OPTIMIZER_STEPS}.new"
        return [helper.make_node("Add", [OPTIMIZER_STEPS, ONE_STEP], [count], name=f"{count}.Add")]

    def _carry(self, name: str, shape: Shape) -> None:
        for found, place in ((name, self.inputs), (f"{name}.new", self.outputs)):
            place.append(helper.make_tensor_value_info(found, TensorProto.FLOAT, list(shape)))

    def _constant(self, name: str, value: float) -> None:
        if name not in {constant.name for constant in self.constants}:
            self.constants.append(numpy_helper.from_array(np.array([value], dtype=np.float32), name))


def _ours(operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: int | float) -> onnx.NodeProto:
    node = helper.make_node(operator, list(inputs), list(outputs), name=f"{outputs[0]}.{operator}", domain=OP_DOMAIN)
    node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    return node
