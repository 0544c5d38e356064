"""Writes the files of onnxruntime-training's API: training, evaluation and optimizer graph, and its checkpoint.

Its gradient builder comes with onnxruntime-training alone, which ended with Python 3.11 on x86-64 Linux. Without it an
export has none of these files, and devices train in the plain graph.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import onnx

from sparsyedge.edge.model.artifacts import API_ROLES, FileRole
from sparsyedge.edge.model.methods import FLOOR_STEPS, Method
from sparsyedge.edge.native import OP_DOMAIN, library_path
from sparsyedge.edge.tensors import FloatArray
from sparsyedge.edge.training.onnx_runtime import training_api
from sparsyedge.export import rewrite
from sparsyedge.export.theta import insert_reparametrisation
from sparsyedge.export.trace import LOGITS_NAME

if training_api is not None:
    from onnxruntime.capi._pybind_state import GradientNodeDefinition, register_gradient_definition
    from onnxruntime.training import artifacts as ort_artifacts

__all__ = ["INSTALLED", "write_training_api_graphs"]

INSTALLED = training_api is not None
"""Whether this Python has the gradient builder."""
# The file names that onnxruntime's generate_artifacts chooses.
GENERATED_NAMES: dict[FileRole, str] = {
    "training": "training_model.onnx",
    "eval": "eval_model.onnx",
    "optimizer": "optimizer_model.onnx",
    "checkpoint": "checkpoint",
}
LOSS_NAME = "loss"


def write_training_api_graphs(
    forward: onnx.ModelProto,
    method: Method,
    paths: Mapping[FileRole, Path],
    *,
    trainable: Sequence[str],
    prunable: Iterable[str],
    statistics: Mapping[str, str],
    exponents: Mapping[str, FloatArray],
) -> None:
    """Write the files of a traced network to `paths`; `forward` becomes the graph that was differentiated.

    `statistics` are the graph outputs with BatchNorm's new statistics, by parameter name; `exponents` are the layers'.
    """
    weights = sorted(prunable)
    insert_reparametrisation(forward, trainable=trainable, prunable=weights, method=method, exponents=exponents)
    _generate(forward, paths, trainable=trainable, statistics=statistics, frozen=[*statistics, *exponents])
    _edit_generated(paths, method=method, prunable=weights)


def _generate(
    forward: onnx.ModelProto,
    paths: Mapping[FileRole, Path],
    *,
    trainable: Sequence[str],
    statistics: Mapping[str, str],
    frozen: list[str],
) -> None:
    """Let onnxruntime-training build the gradient graph, the optimizer and the checkpoint."""
    _register_gradients()
    folder = paths["training"].parent
    with tempfile.TemporaryDirectory(dir=folder.parent) as generated, _quiet_stderr():
        ort_artifacts.generate_artifacts(
            forward,
            requires_grad=list(trainable),
            frozen_params=frozen,
            loss=ort_artifacts.LossType.CrossEntropyLoss,
            optimizer=ort_artifacts.OptimType.SGD,
            artifact_directory=generated,
            custom_op_library=str(library_path()),
            additional_output_names=[LOGITS_NAME, *statistics.values()],
            loss_input_names=[LOGITS_NAME],
        )
        for role, name in GENERATED_NAMES.items():
            shutil.move(Path(generated) / name, paths[role])


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


def _edit_generated(paths: Mapping[FileRole, Path], *, method: Method, prunable: Iterable[str]) -> None:
    """Prune activations in the training graph; give the evaluation graph running statistics and two outputs."""
    graphs = {role: onnx.load(paths[role]) for role in API_ROLES}
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
        rewrite.insert_gradient_masks(graphs["training"], biases=method.freezes_zero_biases)
    rewrite.freeze_batch_norms(graphs["eval"])
    rewrite.keep_outputs(graphs["eval"], [LOSS_NAME, LOGITS_NAME])
    for role, graph in graphs.items():
        onnx.save(graph, paths[role])


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
