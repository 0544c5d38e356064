"""Builds a folder of training artifacts with a manifest from a model and a method."""

from __future__ import annotations

import importlib.metadata
import logging
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from msgspec import UNSET
from torch import nn

from sparsyedge.edge.errors import ArtifactError, ConfigError
from sparsyedge.edge.inference.template import strip_weights
from sparsyedge.edge.model.artifacts import (
    LAST_WITH_API_FILES,
    MANIFEST_VERSION,
    Artifacts,
    File,
    FileRole,
    Manifest,
    Parameter,
    StatedChoices,
    needed_features,
)
from sparsyedge.edge.model.methods import WARMUP_FEATURE, Method
from sparsyedge.edge.model.training import FEATURE, PLAIN_SGD, SHIFT_FEATURE, Training, check_training, check_votes
from sparsyedge.edge.native import ABI_VERSION
from sparsyedge.edge.storage import sha256_file
from sparsyedge.edge.tensors import model_id
from sparsyedge.export import training_api_graphs
from sparsyedge.export.fused.graphs import read_fused, write_fused_graphs
from sparsyedge.export.general.graphs import write_general_graphs
from sparsyedge.export.graph_facts import GraphFacts
from sparsyedge.export.model_spec import AS_IT_IS, ModelChoices, ModelSpec, plain_name
from sparsyedge.export.models import make_module, prunable_names, state_of, turn_into_weights
from sparsyedge.export.sparse_start import start_sparse
from sparsyedge.export.trace import OPSET

__all__ = ["build_artifacts"]

log = logging.getLogger(__name__)

Checked = TypeVar("Checked")

FILE_NAMES: dict[FileRole, str] = {
    "training": "training.onnx",
    "eval": "eval.onnx",
    "optimizer": "optimizer.onnx",
    "checkpoint": "checkpoint",
    "inference": "inference.onnx",
    "sparse_plan": "sparse_plan.onnx",
    "sparse_step": "sparse_step.onnx",
    "skeleton": "skeleton.onnx",
}


@dataclass(frozen=True)
class _Blueprint:
    """Everything that decides what an export contains."""

    spec: ModelSpec
    method: Method
    seed: int
    training: Training
    choices: ModelChoices
    for_training_api: bool


def build_artifacts(
    spec: ModelSpec,
    method: Method,
    directory: Path,
    *,
    seed: int,
    check: Callable[[Artifacts, nn.Module], Checked],
    training: Training = PLAIN_SGD,
    choices: ModelChoices = AS_IT_IS,
    for_training_api: bool = training_api_graphs.INSTALLED,
) -> tuple[Artifacts, Checked]:
    """Export the model into `directory`, which must be absent or empty; it appears complete and checked, or not at all.

    `check` raises if the artifacts are wrong; its result is passed on. It may use the module as scratch space.
    `for_training_api` says whether to write the files of onnxruntime-training, which must then be installed; they know
    plain SGD only.
    """
    check_training(training, spec.input_shape, has_classes=spec.task == "classes")
    check_votes(method, training)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"output folder {directory} exists and is not empty; choose another or remove it")
    model, holds_theta = make_module(spec, beta=method.beta, seed=seed, choices=choices)
    blueprint = _Blueprint(spec, method, seed, training, choices, for_training_api)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f".{directory.name}.") as temporary:
        staging = Path(temporary) / "artifacts"
        staging.mkdir()
        facts = _write_graphs(blueprint, model, holds_theta=holds_theta, staging=staging)
        _write_skeleton(model, staging)
        Artifacts(staging, _describe(blueprint, model, facts, staging)).save_manifest()
        checked = check(Artifacts.load(staging), model)
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


def _write_graphs(blueprint: _Blueprint, model: nn.Module, *, holds_theta: bool, staging: Path) -> GraphFacts:
    """Write all files but the manifest, in the fused layout if it understands the network."""
    paths: dict[FileRole, Path] = {role: staging / name for role, name in FILE_NAMES.items()}
    spec, method, training = blueprint.spec, blueprint.method, blueprint.training
    try:
        if blueprint.choices.prunable is not None:
            raise ArtifactError("the fused layout prunes every layer")
        fused = read_fused(model, spec)
    except ArtifactError as error:
        log.info("general layout: %s", error)
        return write_general_graphs(
            model,
            spec,
            method,
            training,
            paths,
            pattern=blueprint.choices.prunable,
            holds_theta=holds_theta,
            seed=blueprint.seed,
        )
    if holds_theta:
        turn_into_weights(model, method, prunable_names(model))
    if method.starts_sparse:
        start_sparse(model, sorted(prunable_names(model)), sparsity=method.sparsity, seed=blueprint.seed)
    if holds_theta or method.starts_sparse:
        fused = read_fused(model, spec)  # its graphs hold the weights
    # The API's graphs train dense models, and a run that starts sparse has none. They prune alike in every
    # round, and standard ops have no norm with a gradient that zeros are kept out of.
    with_api = blueprint.for_training_api and training.is_plain
    with_api = with_api and not (method.starts_sparse or method.warms_up or method.has_exact_norm)
    return write_fused_graphs(fused, model, method, training, paths, for_training_api=with_api)


def _write_skeleton(model: nn.Module, staging: Path) -> None:
    """Write what a device needs of the inference graph to make its model.onnx: all but the weights, which it has."""
    inference = (staging / FILE_NAMES["inference"]).read_bytes()
    (staging / FILE_NAMES["skeleton"]).write_bytes(strip_weights(inference, set(state_of(model))))


def _describe(blueprint: _Blueprint, model: nn.Module, facts: GraphFacts, staging: Path) -> Manifest:
    spec, training = blueprint.spec, blueprint.training
    trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    state = state_of(model)
    files: dict[str, File] = {
        role: _file(staging / name) for role, name in FILE_NAMES.items() if (staging / name).exists()
    }
    momentum = next((m.momentum for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)), None)
    choices = blueprint.choices.stated()
    features = (
        *needed_features(spec.input_shape, spec.task),
        *([] if training == PLAIN_SGD else [FEATURE]),
        *([SHIFT_FEATURE] if training.label_shift else []),
        *([WARMUP_FEATURE] if blueprint.method.warms_up else []),
    )
    return Manifest(
        # The oldest version that says it all: devices of earlier releases expect the files of the training API.
        version=LAST_WITH_API_FILES if "training" in files else MANIFEST_VERSION,
        ops_abi=ABI_VERSION,
        model=plain_name(spec.model),
        width=spec.width,
        classes=spec.classes,
        input_shape=spec.input_shape,
        method=blueprint.method,
        seed=blueprint.seed,
        opset=OPSET,
        made_with=_installed_versions("onnx", "onnxruntime", "onnxruntime-training", "torch"),
        parameters=tuple(
            Parameter(
                name=name,
                shape=tensor.shape,
                trainable=name in trainable,
                prunable=name in facts.prunable,
                positions=facts.positions[name] if name in facts.prunable else 0,
                frozen=UNSET if name in trainable or name in facts.statistics else True,
            )
            for name, tensor in state.items()
        ),
        batch_norms=facts.batch_norms,
        batch_norm_momentum=1 - (momentum if momentum is not None else 0.1),
        initial_model=model_id(state),
        files=files,
        class_names=spec.class_names,
        sample_type=spec.sample_type,
        needs=features or UNSET,
        task=spec.task,
        stated_training=UNSET if training == PLAIN_SGD else training,
        stated_choices=UNSET if choices == StatedChoices() else choices,
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
