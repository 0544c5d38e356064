"""The result of a run: a plain ONNX model for inference."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import helper

from sparsyedge.coordinator.onnx_pieces import WeightPiece, pieces_of
from sparsyedge.edge.artifacts import Artifacts, Manifest
from sparsyedge.edge.errors import ArtifactError
from sparsyedge.edge.reparametrise import effective_weights, inference_weights
from sparsyedge.edge.storage import write_pieces_atomically
from sparsyedge.edge.tensors import FloatArray

__all__ = ["emptied", "write_model"]

STANDARD_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml"})


def write_model(path: Path, state: Mapping[str, FloatArray], artifacts: Artifacts) -> None:
    """Write the state as a plain inference graph that any ONNX Runtime loads without our op library.

    The weights go from the state into the file, theta in place of w, one after the other.
    """
    template = artifacts.path("inference")
    manifest = artifacts.manifest
    try:
        model = emptied(onnx.load_model_from_string(template.read_bytes()), manifest)
    except DecodeError as error:
        raise ArtifactError(f"{template} is not an ONNX model: {error}; run `sparsyedge export` again") from error
    try:
        _check(model, manifest)
    except onnx.checker.ValidationError as error:
        raise ArtifactError(f"{template} makes no valid ONNX model: {error}; run `sparsyedge export` again") from error
    weights = [
        WeightPiece(name, shape, partial(_theta, name, state[name], manifest))
        for name, shape in manifest.shapes.items()
    ]
    write_pieces_atomically(path, pieces_of(model, weights))


def emptied(template: onnx.ModelProto, manifest: Manifest) -> onnx.ModelProto:
    """The template without the weights that a state has, which it loses; IR version and opset stay as they are."""
    foreign = {entry.domain for entry in template.opset_import} - STANDARD_DOMAINS
    if foreign:
        raise ArtifactError(
            f"the inference graph uses ops of domain {min(foreign)!r}, only standard ones are allowed; "
            f"run `sparsyedge export` again"
        )
    shapes = {tensor.name: tuple(tensor.dims) for tensor in template.graph.initializer}
    for name, shape in manifest.shapes.items():
        if shapes.get(name) != shape:
            raise ArtifactError(
                f"the inference graph has no initializer {name} of shape {shape}, which the manifest names; "
                f"run `sparsyedge export` again"
            )
    for index in reversed(range(len(template.graph.initializer))):
        if template.graph.initializer[index].name in manifest.shapes:
            del template.graph.initializer[index]
    # Protobuf gives memory back with the whole message only, so what is left moves to another.
    model = onnx.ModelProto()
    model.CopyFrom(template)
    return model


def _check(model: onnx.ModelProto, manifest: Manifest) -> None:
    """Let onnx look at the graph, with its weights as inputs: the checker would copy their values."""
    checked = onnx.ModelProto()
    checked.CopyFrom(model)
    checked.graph.input.extend(
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in manifest.shapes.items()
    )
    onnx.checker.check_model(checked)


def _theta(name: str, tensor: FloatArray, manifest: Manifest) -> FloatArray:
    if name not in manifest.prunable:
        return tensor
    kept = inference_weights(manifest.method, name, tensor, prunable=manifest.prunable)
    return effective_weights(manifest.method, kept)
