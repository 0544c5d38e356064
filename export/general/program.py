"""Traces a module with its loss and lets torch differentiate it: one program from a batch to loss and gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.nn import functional

from sparsyedge.edge.errors import ArtifactError
from sparsyedge.edge.model.training import Training
from sparsyedge.edge.training.job_inputs import LABEL_SHIFT
from sparsyedge.edge.training.sparse_session import LABELS_MIXED, MIX, SEED
from sparsyedge.export.general.refusals import explain_trace, op_places
from sparsyedge.export.general.substitute import Layers, substitute
from sparsyedge.export.model_spec import ModelSpec
from sparsyedge.export.own_module import train_mode
from sparsyedge.export.quiet import quiet

__all__ = ["PER_SAMPLE", "StepProgram", "example_inputs", "trace_step"]

PER_SAMPLE = ("x", "labels", LABELS_MIXED)
"""The inputs whose first axis counts samples."""
_PREFIX = "model."
_MOST_SAMPLES = 65_536
"""In one batch; torch.export wants a bound."""
_TRACED_SAMPLES = 4


@dataclass(frozen=True)
class StepProgram:
    """The differentiated program, and what its inputs and outputs mean, in order."""

    program: ExportedProgram
    layers: Layers
    inputs: tuple[str, ...]
    """Names of parameters and buffers, and of `example_inputs`; `constant:NAME` for what the module holds besides."""
    outputs: tuple[str, ...]
    """`loss`, `NAME.grad`, `NAME.new`."""
    constants: dict[str, Tensor]
    places: dict[str, str]
    """For every op of the forward pass, the path of the first module that uses it."""


class _LossOf(nn.Module):
    """The module with its loss, whose inputs are those of a step."""

    def __init__(self, model: nn.Module, spec: ModelSpec, *, smoothing: float) -> None:
        super().__init__()
        self.model = model
        self._spec = spec
        self._smoothing = smoothing

    def forward(
        self, x: Tensor, labels: Tensor, seed: Tensor, labels_mixed: Tensor | None = None, mix: Tensor | None = None
    ) -> Tensor:
        return self._loss(self.model(x), labels, labels_mixed, mix)

    def _loss(self, logits: Tensor, labels: Tensor, labels_mixed: Tensor | None, mix: Tensor | None) -> Tensor:
        if self._spec.task == "regression":
            return functional.mse_loss(logits, labels)
        loss = functional.cross_entropy(logits, labels, label_smoothing=self._smoothing)
        if labels_mixed is None or mix is None:
            return loss
        other = functional.cross_entropy(logits, labels_mixed, label_smoothing=self._smoothing)
        return (mix * loss + (1 - mix) * other).sum()  # `mix` is one number


class _ShiftedLossOf(_LossOf):
    """The same, with an input that is added to the logits."""

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        labels: Tensor,
        seed: Tensor,
        label_shift: Tensor,
        labels_mixed: Tensor | None = None,
        mix: Tensor | None = None,
    ) -> Tensor:
        return self._loss(self.model(x) + label_shift, labels, labels_mixed, mix)


def trace_step(model: nn.Module, spec: ModelSpec, training: Training) -> StepProgram:
    """The program of one step of a module in training mode; raises ArtifactError if torch cannot export it."""
    samples = torch.export.Dim("batch", min=2, max=_MOST_SAMPLES)
    inputs = example_inputs(spec, training)
    shapes = tuple({0: samples} if name in PER_SAMPLE else None for name in inputs)
    loss_of = _ShiftedLossOf if training.label_shift else _LossOf
    with quiet():
        # Imported here because it brings torch's compiler, which takes most of a second.
        from torch.export.experimental import _export_forward_backward

        try:
            traced = torch.export.export(
                loss_of(train_mode(model), spec, smoothing=training.label_smoothing),
                tuple(inputs.values()),
                dynamic_shapes=shapes,
                strict=False,
            )
        except Exception as error:  # torch's exporter raises whatever its tracer met
            raise ArtifactError(explain_trace(error, model)) from error
        _forget_counters(traced)
        places = op_places(traced)
        layers = substitute(traced, seed=SEED, prefix=_PREFIX, samples=_TRACED_SAMPLES)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            try:
                joint = _export_forward_backward(traced)
            except Exception as error:  # as above
                raise ArtifactError(explain_trace(error, model)) from error
    _refuse_randomness(joint, model)
    _fill_empty_tensors(joint)
    return _described(joint, layers, places)


def _refuse_randomness(program: ExportedProgram, model: nn.Module) -> None:
    """Random numbers would differ between machines, and no gradient would see those of the forward pass."""
    for node in program.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags:
            raise ArtifactError(
                f"{type(model).__name__} draws random numbers in {node.target}; of these ops only dropout, also inside "
                f"attention without a mask, trains on devices: remove the others"
            )


def _fill_empty_tensors(program: ExportedProgram) -> None:
    """ONNX has no tensor without values; torch's gradients use some for their shape."""
    for node in list(program.graph.nodes):
        if node.target is torch.ops.aten.empty_permuted.default:
            with program.graph.inserting_before(node):
                filled = program.graph.call_function(
                    torch.ops.aten.full.default, (node.args[0], 0.0), {"dtype": node.meta["val"].dtype}
                )
            filled.meta = dict(node.meta)
            node.replace_all_uses_with(filled)
            program.graph.erase_node(node)
    program.graph_module.recompile()


def example_inputs(spec: ModelSpec, training: Training) -> dict[str, Tensor]:
    """What a step gets besides the state, by name and in order."""
    classes = torch.zeros(_TRACED_SAMPLES, dtype=torch.int64)
    numbers = torch.zeros(_TRACED_SAMPLES, spec.classes)
    inputs = {
        "x": torch.zeros(_TRACED_SAMPLES, *spec.input_shape),
        "labels": numbers if spec.task == "regression" else classes,
        SEED: torch.zeros(1, dtype=torch.int64),
    }
    if training.label_shift:
        inputs[LABEL_SHIFT] = torch.zeros(spec.classes)
    # Labels that are numbers are mixed before the step, like the samples.
    mixes = training.mixup and spec.task == "classes"
    # A copy: torch takes the same tensor for the same input.
    return inputs | ({LABELS_MIXED: classes.clone(), MIX: torch.zeros(1)} if mixes else {})


def _forget_counters(program: ExportedProgram) -> None:
    """Drop BatchNorm's count of batches: it is not part of a state."""
    counters = {
        spec.arg.name
        for spec in program.graph_signature.input_specs
        if spec.target is not None and spec.target.endswith("num_batches_tracked")
    }
    for node in list(program.graph.nodes):
        if node.target is torch.ops.aten.add_.Tensor and node.args[0].name in counters:
            program.graph.erase_node(node)


def _described(joint: ExportedProgram, layers: Layers, places: dict[str, str]) -> StepProgram:
    signature = joint.graph_signature
    inputs, constants = [], {}
    for spec in signature.input_specs:
        kind = spec.kind.name
        if kind == "USER_INPUT":
            inputs.append(spec.arg.name)
        elif kind in ("PARAMETER", "BUFFER") and spec.target.startswith(_PREFIX):
            inputs.append(spec.target.removeprefix(_PREFIX))
        else:
            inputs.append(f"constant:{spec.target}")
            constants[spec.target] = joint.constants[spec.target]
    outputs = tuple(_output_name(spec) for spec in signature.output_specs)
    return StepProgram(joint, layers, tuple(inputs), outputs, constants, places)


def _output_name(spec: Any) -> str:
    kind = spec.kind.name
    if kind == "LOSS_OUTPUT":
        return "loss"
    if kind == "GRADIENT_TO_PARAMETER":
        return f"{spec.target.removeprefix(_PREFIX)}.grad"
    if kind == "BUFFER_MUTATION":
        return f"{spec.target.removeprefix(_PREFIX)}.new"
    raise ArtifactError(f"the traced program has an output of kind {kind}, which a training step does not know")
