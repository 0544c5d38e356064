"""The result of a run: a plain ONNX model for inference, and the state it was made from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import numpy_helper

from sparsyedge.edge.artifacts import Artifacts, Manifest
from sparsyedge.edge.errors import ArtifactError
from sparsyedge.edge.reparametrise import effective_weights
from sparsyedge.edge.storage import write_atomically
from sparsyedge.edge.tensors import FloatArray

__all__ = ["inference_model", "write_model"]

STANDARD_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml"})


def write_model(path: Path, state: Mapping[str, FloatArray], artifacts: Artifacts) -> None:
    """Write the state as a plain inference graph that any ONNX Runtime loads without our op library."""
    template = artifacts.path("inference")
    try:
        model = onnx.load_model_from_string(template.read_bytes())
    except DecodeError as error:
        raise ArtifactError(f"{template} is not an ONNX model: {error}; run `sparsyedge export` again") from error
    model = inference_model(model, state, artifacts.manifest)
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        raise ArtifactError(f"{template} makes no valid ONNX model: {error}; run `sparsyedge export` again") from error
    write_atomically(path, model.SerializeToString(deterministic=True))


def inference_model(template: onnx.ModelProto, state: Mapping[str, FloatArray], manifest: Manifest) -> onnx.ModelProto:
    """A copy of the template with theta in place of its weights; IR version and opset stay as they are."""
    model = onnx.ModelProto()
    model.CopyFrom(template)
    foreign = {entry.domain for entry in model.opset_import} - STANDARD_DOMAINS
    if foreign:
        raise ArtifactError(
            f"the inference graph uses ops of domain {min(foreign)!r}, only standard ones are allowed; "
            f"run `sparsyedge export` again"
        )
    prunable = set(manifest.prunable)
    initializers = {tensor.name: tensor for tensor in model.graph.initializer}
    for name, shape in manifest.shapes.items():
        if name not in initializers or tuple(initializers[name].dims) != shape:
            raise ArtifactError(
                f"the inference graph has no initializer {name} of shape {shape}, which the manifest names; "
                f"run `sparsyedge export` again"
            )
        value = effective_weights(manifest.method, state[name]) if name in prunable else state[name]
        initializers[name].CopyFrom(numpy_helper.from_array(np.ascontiguousarray(value, dtype=np.float32), name))
    return model
