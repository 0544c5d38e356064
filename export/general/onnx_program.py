"""A traced program as an ONNX graph: torch's ops by torch's own exporter, ours as nodes of a domain of their own.

`expand.py` then turns these nodes into what a device runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
import torch
from onnxscript import ir
from torch import Tensor, nn
from torch.onnx._internal.exporter import _core

from sparsyedge.edge.errors import ArtifactError
from sparsyedge.edge.model.training import PLAIN_SGD, Training
from sparsyedge.export.general.program import PER_SAMPLE, StepProgram, example_inputs
from sparsyedge.export.general.refusals import explain_translation
from sparsyedge.export.general.torch_ops import NAMES
from sparsyedge.export.model_spec import ModelSpec
from sparsyedge.export.quiet import quiet

__all__ = ["TRACED_DOMAIN", "inference_graph", "step_graph"]

TRACED_DOMAIN = "sparsyedge.traced"
OPSET = 18
IR_VERSION = 10
"""The newest that onnxruntime-training 1.19.2 reads."""


def step_graph(
    step: StepProgram, tensors: Mapping[str, Tensor], spec: ModelSpec, training: Training
) -> onnx.ModelProto:
    """The step as a graph from `step.inputs` to `step.outputs`; what the module holds besides becomes constants."""
    wanted = [name for name in step.inputs if not name.startswith("constant:")]
    examples = example_inputs(spec, training) | {name: tensors[name] for name in wanted if name in tensors}
    module = _Lifted(step)
    arguments = tuple(examples[name] for name in wanted)
    dynamic = tuple({0: torch.export.Dim.AUTO} if name in PER_SAMPLE else None for name in wanted)
    return _to_onnx(module, arguments, dynamic, inputs=wanted, outputs=step.outputs, places=step.places)


def inference_graph(model: nn.Module, spec: ModelSpec) -> onnx.ModelProto:
    """The module's forward pass as one input `x`, one output `logits`, and initializers by the names of its tensors."""
    names = [name for name, _ in (*model.named_parameters(), *model.named_buffers()) if not _is_counter(name)]
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    was_training = model.training
    model.eval()
    try:
        graph = _to_onnx(
            _Stateless(model, names),
            (*(tensors[name].detach() for name in names), example_inputs(spec, PLAIN_SGD)["x"]),
            (*(None for _ in names), {0: torch.export.Dim.AUTO}),
            inputs=[*names, "x"],
            outputs=["logits"],
        )
    finally:
        model.train(was_training)
    stored = {name: onnx.numpy_helper.from_array(tensors[name].detach().numpy(), name) for name in names}
    graph.graph.initializer.extend(stored.values())
    return graph


class _Lifted(nn.Module):
    """The differentiated program with parameters and buffers as arguments."""

    def __init__(self, step: StepProgram) -> None:
        super().__init__()
        self._graph = step.program.graph_module
        self._inputs, self._constants = step.inputs, step.constants

    def forward(self, *arguments: Tensor) -> Any:
        given = iter(arguments)
        return self._graph(
            *(
                self._constants[name.removeprefix("constant:")] if name.startswith("constant:") else next(given)
                for name in self._inputs
            )
        )


class _Stateless(nn.Module):
    """A module with its parameters and buffers as arguments."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        # In a list, so that torch does not see its parameters a second time.
        self._model, self._names = [model], names

    def forward(self, *arguments: Tensor) -> Any:
        *state, x = arguments
        return torch.func.functional_call(self._model[0], dict(zip(self._names, state, strict=True)), (x,))


def _is_counter(name: str) -> bool:
    return name.endswith("num_batches_tracked")


def _to_onnx(
    module: nn.Module,
    arguments: tuple[Tensor, ...],
    dynamic: tuple[Any, ...],
    *,
    inputs: Sequence[str],
    outputs: Sequence[str],
    places: Mapping[str, str] | None = None,
) -> onnx.ModelProto:
    with quiet(), torch.no_grad():
        try:
            program = torch.onnx.export(
                module,
                arguments,
                dynamo=True,
                opset_version=OPSET,
                dynamic_shapes=(dynamic,),
                input_names=list(inputs),
                output_names=list(outputs),
                custom_translation_table=_translations(),
                verbose=False,
            )
        except Exception as error:  # torch's exporter raises whatever its tracer met
            raise ArtifactError(explain_translation(error, places or {})) from error
    assert program is not None
    graph = program.model_proto
    graph.ir_version = IR_VERSION
    _forget_origins(graph)
    return graph


def _forget_origins(model: onnx.ModelProto) -> None:
    """Drop what torch notes of each node: stack traces name files of this machine, and outweigh the graph."""
    graph = model.graph
    parts: list[Any] = [model, graph, *graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer]
    for function in model.functions:
        parts += [function, *function.node, *function.value_info]
    for part in parts:
        del part.metadata_props[:]


def _translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """A function for each of our torch ops that records it as a node: tensors as inputs, all else as attributes."""
    return {getattr(torch.ops.sparsyedge, name).default: _recorder(name) for name in NAMES}


def _recorder(name: str) -> Callable[..., Any]:
    schema = getattr(torch.ops.sparsyedge, name).default._schema

    def record(*arguments: Any) -> Any:
        tensors = [value for value, each in zip(arguments, schema.arguments, strict=True) if "Tensor" in str(each.type)]
        attributes = {
            each.name: int(value) if isinstance(value, bool) else value
            for value, each in zip(arguments, schema.arguments, strict=True)
            if "Tensor" not in str(each.type)
        }
        node = ir.Node(
            TRACED_DOMAIN,
            name,
            inputs=tensors,
            attributes=ir.convenience.convert_attributes(attributes),
            num_outputs=len(schema.returns),
            version=1,
        )
        assert _core.current_tracer is not None
        _core.current_tracer.nodes.append(node)
        for value in node.outputs:
            value.dtype = ir.DataType.FLOAT
        return node.outputs[0] if len(node.outputs) == 1 else node.outputs

    return record
