"""Writes the graphs of a network that the fused layout understands."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import onnx
from torch import nn

from sparsyedge.edge.errors import ArtifactError
from sparsyedge.edge.model.artifacts import IMAGE_AXES, BatchNorm, FileRole
from sparsyedge.edge.model.checkpoint import encode_checkpoint
from sparsyedge.edge.model.methods import Method
from sparsyedge.edge.model.reparametrise import layer_exponents
from sparsyedge.edge.model.training import Training
from sparsyedge.export import rewrite, training_api_graphs
from sparsyedge.export.fused.layers import Network, read_network
from sparsyedge.export.fused.step import build_plan_graph, build_sparse_step
from sparsyedge.export.graph_facts import GraphFacts
from sparsyedge.export.model_spec import ModelSpec
from sparsyedge.export.models import prunable_names, state_of
from sparsyedge.export.trace import INPUT_NAME, trace

__all__ = ["FusedNetwork", "read_fused", "write_fused_graphs"]


class FusedNetwork:
    """A module's forward graph and the layers that the fused layout found in it."""

    def __init__(self, forward: onnx.ModelProto) -> None:
        self.forward = forward
        self.statistics = rewrite.name_running_statistics(forward)
        self.network: Network = read_network(forward, INPUT_NAME)


def read_fused(model: nn.Module, spec: ModelSpec) -> FusedNetwork:
    """The module as layers of the fused layout; raises ArtifactError, with the reason, if it is none of its kind."""
    if len(spec.input_shape) != IMAGE_AXES or spec.task != "classes":
        raise ArtifactError("the fused layout takes images and tells classes apart")
    if not all(parameter.requires_grad for parameter in model.parameters()):
        raise ArtifactError("the fused layout trains all parameters")
    try:
        forward = trace(model, spec, training=True)
    except Exception as error:  # torch's tracer raises whatever it met in the module
        raise ArtifactError(f"the fused layout's tracer cannot follow the module: {error}") from error
    known = {name for name, _ in model.named_parameters()}
    stored = {tensor.name for tensor in forward.graph.initializer}
    if not known <= stored:
        raise ArtifactError(f"the tracer folded parameter {min(known - stored)} into others")
    return FusedNetwork(forward)


def write_fused_graphs(
    fused: FusedNetwork,
    model: nn.Module,
    method: Method,
    training: Training,
    paths: Mapping[FileRole, Path],
    *,
    for_training_api: bool,
) -> GraphFacts:
    """Write all files but the manifest to `paths`."""
    forward = fused.forward
    prunable = prunable_names(model)
    facts = _measure(forward, fused.statistics, prunable)
    inference = onnx.ModelProto.FromString(forward.SerializeToString())
    rewrite.freeze_batch_norms(inference)
    onnx.checker.check_model(inference)
    onnx.save(inference, paths["inference"])
    onnx.save(build_plan_graph(fused.network), paths["sparse_plan"])
    onnx.save(build_sparse_step(fused.network, method, training), paths["sparse_step"])
    state = state_of(model)
    if not for_training_api:
        paths["checkpoint"].write_bytes(encode_checkpoint(state, prunable=prunable))
        return facts
    training_api_graphs.write_training_api_graphs(
        forward,
        method,
        paths,
        trainable=[name for name, _ in model.named_parameters()],
        prunable=prunable,
        statistics=fused.statistics,
        exponents=layer_exponents(method, state, sorted(prunable)),
    )
    return facts


def _measure(forward: onnx.ModelProto, statistics: Mapping[str, str], prunable: frozenset[str]) -> GraphFacts:
    graph = onnx.shape_inference.infer_shapes(forward).graph
    dims = {
        value.name: [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
        for value in graph.value_info
    }
    norms, positions = [], {}
    for node in graph.node:
        if node.op_type == "BatchNormalization":
            mean, variance = node.input[3], node.input[4]
            outputs = (statistics[mean], statistics[variance])
            norms.append(BatchNorm(mean, variance, *outputs, plane=math.prod(dims[node.input[0]][2:])))
        elif node.op_type == "Conv":
            positions[node.input[1]] = math.prod(dims[node.output[0]][2:])
        elif node.op_type == "Gemm":
            positions[node.input[1]] = 1
    changed = frozenset(name for norm in norms for name in (norm.mean, norm.variance))
    return GraphFacts(tuple(norms), positions, prunable, changed)
