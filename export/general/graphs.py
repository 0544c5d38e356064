"""Writes the graphs of any module in the general layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx
from torch import Tensor, nn

from sparsyedge.edge.model.artifacts import BatchNorm, FileRole
from sparsyedge.edge.model.checkpoint import encode_checkpoint
from sparsyedge.edge.model.methods import Method
from sparsyedge.edge.model.training import Training
from sparsyedge.export.general.onnx_program import TRACED_DOMAIN, inference_graph, step_graph
from sparsyedge.export.general.program import StepProgram, trace_step
from sparsyedge.export.general.step import Network, build_plan_graph, build_step_graph
from sparsyedge.export.graph_facts import GraphFacts
from sparsyedge.export.model_spec import ModelSpec
from sparsyedge.export.models import state_of, turn_into_weights
from sparsyedge.export.own_module import choose_prunable
from sparsyedge.export.sparse_start import start_sparse

__all__ = ["write_general_graphs"]


def write_general_graphs(
    model: nn.Module,
    spec: ModelSpec,
    method: Method,
    training: Training,
    paths: Mapping[FileRole, Path],
    *,
    pattern: str | None,
    holds_theta: bool,
    seed: int,
) -> GraphFacts:
    """Write all files but the manifest and those of the training API, which knows plain networks only.

    `pattern` names the prunable parameters; without one they are the weights of convolutions and linear layers. If the
    module holds theta, its prunable parameters become w. The seed decides which weights a sparse start keeps.
    """
    step = trace_step(model, spec, training)
    traced = step_graph(step, {name: tensor.detach() for name, tensor in _tensors(model).items()}, spec, training)
    trainable = tuple(name for name, parameter in model.named_parameters() if parameter.requires_grad)
    prunable = choose_prunable(trainable, list(step.layers), pattern, shared=step.layers.shared)
    if holds_theta:
        turn_into_weights(model, method, prunable)
    if method.starts_sparse:
        start_sparse(model, prunable, sparsity=method.sparsity, seed=seed)
    state = state_of(model)
    inference = inference_graph(model, spec)
    onnx.checker.check_model(inference)
    network = Network(traced, step.layers, {name: value.shape for name, value in state.items()}, trainable, prunable)
    onnx.save(inference, paths["inference"])
    onnx.save(build_plan_graph(network), paths["sparse_plan"])
    onnx.save(build_step_graph(network, method, training), paths["sparse_step"])
    paths["checkpoint"].write_bytes(encode_checkpoint(state, prunable=frozenset(prunable)))
    positions = {name: step.layers.positions.get(name, 1) for name in prunable}
    statistics = frozenset(name.removesuffix(".new") for name in step.outputs if name.endswith(".new"))
    return GraphFacts(_batch_norms(traced, step), positions, frozenset(prunable), statistics)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _batch_norms(traced: onnx.ModelProto, step: StepProgram) -> tuple[BatchNorm, ...]:
    """The BatchNorms whose statistics a step changes."""
    return tuple(
        BatchNorm(mean, variance, f"{mean}.new", f"{variance}.new", plane=step.layers.planes[mean])
        for node in traced.graph.node
        if node.domain == TRACED_DOMAIN and node.op_type == "batch_norm"
        for mean, variance in [node.input[3:5]]
    )
