"""Builds a folder of training artifacts with a manifest from a model and a method."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import onnx
from torch import nn

from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.artifacts import (
    MANIFEST_VERSION,
    Artifacts,
    BatchNorm,
    File,
    FileRole,
    Manifest,
    Parameter,
    needed_features,
)
from sparsyedge.edge.model.methods import FLOOR_STEPS, Method
from sparsyedge.edge.model.reparametrise import layer_exponents
from sparsyedge.edge.native import ABI_VERSION, OP_DOMAIN, library_path
from sparsyedge.edge.storage import sha256_file
from sparsyedge.edge.tensors import State, model_id
from sparsyedge.export import rewrite
from sparsyedge.export.fused.layers import read_network
from sparsyedge.export.fused.step import build_plan_graph, build_sparse_step
from sparsyedge.export.models import ModelSpec, build_model, prunable_names
from sparsyedge.export.theta import insert_reparametrisation
from sparsyedge.export.trace import INPUT_NAME, LOGITS_NAME, OPSET, trace

try:
    from onnxruntime.capi._pybind_state import GradientNodeDefinition, register_gradient_definition
    from onnxruntime.training import artifacts as ort_artifacts
except ImportError as error:
    raise ConfigError(
        f"an export needs onnxruntime-training, which there is for Python 3.11 on x86-64 Linux; this is Python "
        f"{sys.version_info.major}.{sys.version_info.minor} on {platform.machine()}, without it ({error}). Export with "
        "Python 3.11: run `python3.11 -m venv .venv && .venv/bin/pip install '.[export]'` in a checkout; "
        "devices and the coordinator run on any Python from 3.11"
    ) from error

__all__ = ["build_artifacts", "state_of"]

Checked = TypeVar("Checked")

FILE_NAMES: dict[FileRole, str] = {
    "training": "training.onnx",
    "eval": "eval.onnx",
    "optimizer": "optimizer.onnx",
    "checkpoint": "checkpoint",
    "inference": "inference.onnx",
    "sparse_plan": "sparse_plan.onnx",
    "sparse_step": "sparse_step.onnx",
}
# The file names that onnxruntime's generate_artifacts chooses.
GENERATED_NAMES: dict[FileRole, str] = {
    "training": "training_model.onnx",
    "eval": "eval_model.onnx",
    "optimizer": "optimizer_model.onnx",
    "checkpoint": "checkpoint",
}
GENERATED_GRAPHS: tuple[FileRole, ...] = ("training", "eval", "optimizer")
LOSS_NAME = "loss"


def build_artifacts(
    spec: ModelSpec, method: Method, directory: Path, *, seed: int, check: Callable[[Artifacts], Checked]
) -> tuple[Artifacts, Checked]:
    """Export the model into `directory`, which must be absent or empty; it appears complete and checked, or not at all.

    `check` raises if the artifacts are wrong; its result is passed on.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"output folder {directory} exists and is not empty; choose another or remove it")
    directory.parent.mkdir(parents=True, exist_ok=True)
    model = build_model(spec, beta=method.beta, seed=seed)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f".{directory.name}.") as temporary:
        staging = Path(temporary) / "artifacts"
        staging.mkdir()
        planes = _write_graphs(model, spec, method, staging)
        manifest = _describe(model, spec, method, staging, planes=planes, seed=seed)
        Artifacts(staging, manifest).save_manifest()
        checked = check(Artifacts.load(staging))
        try:
            if directory.exists():
                directory.rmdir()
            staging.rename(directory)
        except OSError as error:
            # Another export may have created it first.
            raise ConfigError(
                f"output folder {directory} cannot be made ({error.strerror}); choose another or remove it"
            ) from error
    return Artifacts.load(directory), checked


def state_of(model: nn.Module) -> State:
    """The model's tensors as numpy copies; BatchNorm's batch counters are not part of a state."""
    return {
        name: tensor.detach().numpy().copy()
        for name, tensor in model.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }


def _write_graphs(model: nn.Module, spec: ModelSpec, method: Method, staging: Path) -> _Planes:
    """Write all files but the manifest."""
    forward = trace(model, spec, training=True)
    statistics = rewrite.name_running_statistics(forward)
    planes = _measure_planes(forward, statistics)
    inference = onnx.ModelProto.FromString(forward.SerializeToString())
    rewrite.freeze_batch_norms(inference)
    onnx.checker.check_model(inference)
    onnx.save(inference, staging / FILE_NAMES["inference"])

    network = read_network(forward, INPUT_NAME)
    onnx.save(build_plan_graph(network), staging / FILE_NAMES["sparse_plan"])
    onnx.save(build_sparse_step(network, method), staging / FILE_NAMES["sparse_step"])

    trainable = [name for name, _ in model.named_parameters()]
    prunable = prunable_names(model)
    exponents = layer_exponents(method, state_of(model), sorted(prunable))
    insert_reparametrisation(forward, trainable=trainable, prunable=prunable, method=method, exponents=exponents)
    _generate(forward, trainable=trainable, statistics=statistics, frozen=[*statistics, *exponents], staging=staging)
    _edit_generated(staging, method=method, prunable=prunable)
    return planes


def _generate(
    forward: onnx.ModelProto, *, trainable: list[str], statistics: dict[str, str], frozen: list[str], staging: Path
) -> None:
    """Let onnxruntime-training build the gradient graph, the optimizer and the checkpoint."""
    _register_gradients()
    with tempfile.TemporaryDirectory(dir=staging.parent) as generated, _quiet_stderr():
        ort_artifacts.generate_artifacts(
            forward,
            requires_grad=trainable,
            frozen_params=frozen,
            loss=ort_artifacts.LossType.CrossEntropyLoss,
            optimizer=ort_artifacts.OptimType.SGD,
            artifact_directory=generated,
            custom_op_library=str(library_path()),
            additional_output_names=[LOGITS_NAME, *statistics.values()],
            loss_input_names=[LOGITS_NAME],
        )
        for role, name in GENERATED_NAMES.items():
            shutil.move(Path(generated) / name, staging / FILE_NAMES[role])


@contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Silence native code: the gradient builder prints 50 lines, and no setting turns that off."""
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def _edit_generated(staging: Path, *, method: Method, prunable: Iterable[str]) -> None:
    """Prune activations in the training graph; give the evaluation graph running statistics and two outputs."""
    graphs = {role: onnx.load(staging / FILE_NAMES[role]) for role in GENERATED_GRAPHS}
    for graph in graphs.values():
        rewrite.drop_counters(graph)
    if method.prune_activations and method.activation_density == "target":
        rewrite.insert_activation_pruning(graphs["training"], prunable, density=method.density)
    elif method.prune_activations:
        least = int(method.least_activations * FLOOR_STEPS)
        rewrite.insert_activation_pruning(graphs["training"], prunable, least=least)
    if method.prune_weights != "none":
        rewrite.insert_weight_pruning(graphs["training"], prunable, method.density)
    if method.masks_gradients:
        rewrite.insert_gradient_masks(graphs["training"])
    rewrite.freeze_batch_norms(graphs["eval"])
    rewrite.keep_outputs(graphs["eval"], [LOSS_NAME, LOGITS_NAME])
    for role, graph in graphs.items():
        onnx.save(graph, staging / FILE_NAMES[role])


def _register_gradients() -> None:
    """Tell onnxruntime's gradient builder how to differentiate our ops; safe to call again."""
    definitions = {
        "PowerProp": (["GO(0)", "I(0)", "I(1)", "I(2)"], "PowerPropGrad"),
        "Decay": (["GO(0)", "I(0)", "I(1)"], "DecayGrad"),
    }
    for operator, (inputs, gradient) in definitions.items():
        node = GradientNodeDefinition()
        node.op_type, node.domain = gradient, OP_DOMAIN
        node.inputs, node.outputs, node.attributes = inputs, ["GI(0)"], []
        register_gradient_definition(f"{OP_DOMAIN}::{operator}", [node])


@dataclass(frozen=True)
class _Planes:
    """The plane sizes for the manifest; only the graph knows them."""

    batch_norms: tuple[BatchNorm, ...]
    positions: dict[str, int]
    """The number of positions in each layer's output plane, by the name of its weight."""


def _measure_planes(forward: onnx.ModelProto, statistics: dict[str, str]) -> _Planes:
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
    return _Planes(tuple(norms), positions)


def _describe(
    model: nn.Module, spec: ModelSpec, method: Method, staging: Path, *, planes: _Planes, seed: int
) -> Manifest:
    trainable = {name for name, _ in model.named_parameters()}
    prunable = prunable_names(model)
    state = state_of(model)
    momentum = next((m.momentum for m in model.modules() if isinstance(m, nn.BatchNorm2d)), None)
    return Manifest(
        version=MANIFEST_VERSION,
        ops_abi=ABI_VERSION,
        model=spec.model,
        width=spec.width,
        classes=spec.classes,
        input_shape=spec.input_shape,
        method=method,
        seed=seed,
        opset=OPSET,
        made_with={name: importlib.metadata.version(name) for name in ("onnx", "onnxruntime-training", "torch")},
        parameters=tuple(
            Parameter(
                name=name,
                shape=tensor.shape,
                trainable=name in trainable,
                prunable=name in prunable,
                positions=planes.positions[name] if name in prunable else 0,
            )
            for name, tensor in state.items()
        ),
        batch_norms=planes.batch_norms,
        batch_norm_momentum=1 - (momentum if momentum is not None else 0.1),
        initial_model=model_id(state),
        files={role: _file(staging / name) for role, name in FILE_NAMES.items()},
        class_names=spec.class_names,
        sample_type=spec.sample_type,
        needs=needed_features(spec.input_shape, spec.task),
        task=spec.task,
    )


def _file(path: Path) -> File:
    return File(name=path.name, sha256=sha256_file(path), bytes=path.stat().st_size)
