"""Builds a folder of training artifacts with a manifest from a model and a method."""

from __future__ import annotations

import importlib.metadata
import math
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import onnx
from torch import nn

from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.artifacts import (
    LAST_WITH_API_FILES,
    MANIFEST_VERSION,
    Artifacts,
    BatchNorm,
    File,
    FileRole,
    Manifest,
    Parameter,
)
from sparsyedge.edge.model.checkpoint import encode_checkpoint
from sparsyedge.edge.model.methods import Method
from sparsyedge.edge.model.reparametrise import layer_exponents
from sparsyedge.edge.native import ABI_VERSION
from sparsyedge.edge.storage import sha256_file
from sparsyedge.edge.tensors import State, model_id
from sparsyedge.export import rewrite, training_api_graphs
from sparsyedge.export.fused.layers import read_network
from sparsyedge.export.fused.step import build_plan_graph, build_sparse_step
from sparsyedge.export.models import ModelSpec, build_model, prunable_names
from sparsyedge.export.trace import INPUT_NAME, OPSET, trace

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


def build_artifacts(
    spec: ModelSpec,
    method: Method,
    directory: Path,
    *,
    seed: int,
    check: Callable[[Artifacts], Checked],
    for_training_api: bool = training_api_graphs.INSTALLED,
) -> tuple[Artifacts, Checked]:
    """Export the model into `directory`, which must be absent or empty; it appears complete and checked, or not at all.

    `check` raises if the artifacts are wrong; its result is passed on. `for_training_api` says whether to write the
    files of onnxruntime-training, which must then be installed.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"output folder {directory} exists and is not empty; choose another or remove it")
    directory.parent.mkdir(parents=True, exist_ok=True)
    model = build_model(spec, beta=method.beta, seed=seed)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f".{directory.name}.") as temporary:
        staging = Path(temporary) / "artifacts"
        staging.mkdir()
        planes = _write_graphs(model, spec, method, staging, for_training_api=for_training_api)
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


def _write_graphs(
    model: nn.Module, spec: ModelSpec, method: Method, staging: Path, *, for_training_api: bool
) -> _Planes:
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

    state, prunable = state_of(model), prunable_names(model)
    if not for_training_api:
        (staging / FILE_NAMES["checkpoint"]).write_bytes(encode_checkpoint(state, prunable=prunable))
        return planes
    training_api_graphs.write_training_api_graphs(
        forward,
        method,
        {role: staging / name for role, name in FILE_NAMES.items()},
        trainable=[name for name, _ in model.named_parameters()],
        prunable=prunable,
        statistics=statistics,
        exponents=layer_exponents(method, state, sorted(prunable)),
    )
    return planes


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
    files: dict[str, File] = {
        role: _file(staging / name) for role, name in FILE_NAMES.items() if (staging / name).exists()
    }
    momentum = next((m.momentum for m in model.modules() if isinstance(m, nn.BatchNorm2d)), None)
    return Manifest(
        # The oldest version that says it all: devices of earlier releases expect the files of the training API.
        version=LAST_WITH_API_FILES if "training" in files else MANIFEST_VERSION,
        ops_abi=ABI_VERSION,
        model=spec.model,
        width=spec.width,
        classes=spec.classes,
        input_shape=spec.input_shape,
        method=method,
        seed=seed,
        opset=OPSET,
        made_with=_installed_versions("onnx", "onnxruntime", "onnxruntime-training", "torch"),
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
        files=files,
        class_names=spec.class_names,
        sample_type=spec.sample_type,
    )


def _installed_versions(*names: str) -> dict[str, str]:
    """The versions of those packages that are installed."""
    found = {}
    for name in names:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _file(path: Path) -> File:
    return File(name=path.name, sha256=sha256_file(path), bytes=path.stat().st_size)
