"""Writes a state as the ONNX files that a run delivers, one weight at a time and without a second copy.

A file is the exported inference graph with these weights, preprocessing in front, a softmax behind, and metadata; a
regression has no softmax. Any onnxruntime loads it, without our op library.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

import numpy as np

from sparsyedge.edge.errors import ArtifactError
from sparsyedge.edge.inference.description import Origin, describe
from sparsyedge.edge.inference.onnx_format import FLOAT, Graph, Model, metadata_entry, node, tensor_head, value_info
from sparsyedge.edge.inference.preprocessing import (
    BATCH,
    FLOAT_MODEL_NAME,
    MODEL_NAME,
    Preprocessing,
    preprocessings,
)
from sparsyedge.edge.inference.protobuf import bytes_field, head, text_field
from sparsyedge.edge.inference.template import Template, read_template
from sparsyedge.edge.model.artifacts import Artifacts, Manifest
from sparsyedge.edge.model.reparametrise import network_weights
from sparsyedge.edge.storage import write_pieces_atomically
from sparsyedge.edge.tensors import FloatArray

__all__ = ["PROBABILITIES", "VALUES", "Weight", "check_deliverable", "pieces_of", "write_models"]

PROBABILITIES = "probabilities"
VALUES = "values"
"""The one output of a regression."""

Fields = dict[int, bytes]
"""Encoded fields of a message, by number."""


def write_models(
    directory: Path,
    state: Mapping[str, FloatArray],
    artifacts: Artifacts,
    origin: Origin,
    *,
    names: Container[str] = (MODEL_NAME, FLOAT_MODEL_NAME),
) -> None:
    """Write model.onnx, and model_float.onnx if the model was trained on uint8 images; of these, those in `names`."""
    manifest, template = artifacts.manifest, read_template(artifacts)
    weights = [
        Weight(name, shape, partial(network_weights, manifest.method, name, state[name], prunable=manifest.prunable))
        for name, shape in manifest.shapes.items()
    ]
    for name, preprocessing in preprocessings(manifest.sample_type, manifest.input_shape).items():
        if name not in names:
            continue
        graph = _graph_fields(template, preprocessing, manifest)
        model = _model_fields(template, describe(manifest, preprocessing, origin).metadata())
        write_pieces_atomically(directory / name, pieces_of(model, graph, weights))


def check_deliverable(artifacts: Artifacts) -> None:
    """Raise ArtifactError if a run with these artifacts could not deliver its model."""
    manifest, template = artifacts.manifest, read_template(artifacts)
    for preprocessing in preprocessings(manifest.sample_type, manifest.input_shape).values():
        _graph_fields(template, preprocessing, manifest)
        describe(manifest, preprocessing, Origin(run="", round=0, accuracy=0.0, sparsity=0.0))


def _graph_fields(template: Template, preprocessing: Preprocessing, manifest: Manifest) -> Fields:
    """The graph without the state's weights."""
    answer = PROBABILITIES if manifest.task == "classes" else VALUES
    taken = template.names & (preprocessing.names | {answer})
    if taken:
        raise ArtifactError(
            f"the inference graph has a tensor {min(taken)!r}, a name that the delivered model needs; "
            f"run `sparsyedge export` again"
        )
    found = dict(template.graph_fields)
    before = b"".join(bytes_field(Graph.NODE, each) for each in preprocessing.nodes(template.input))
    last = node("Softmax", [template.logits], answer, axis=1)
    outputs = [template.logits, answer]
    if manifest.task == "regression":
        last, outputs = node("Identity", [template.logits], answer), [answer]
    found[Graph.NODE] = before + found.get(Graph.NODE, b"") + bytes_field(Graph.NODE, last)
    constants = b"".join(bytes_field(Graph.INITIALIZER, each) for each in preprocessing.constants().values())
    found[Graph.INITIALIZER] = found.get(Graph.INITIALIZER, b"") + constants
    found[Graph.INPUT] = bytes_field(Graph.INPUT, preprocessing.input_info(manifest.input_shape))
    found[Graph.OUTPUT] = b"".join(
        bytes_field(Graph.OUTPUT, value_info(name, (BATCH, manifest.outputs), FLOAT)) for name in outputs
    )
    return found


def _model_fields(template: Template, entries: Mapping[str, str]) -> Fields:
    """The model without the graph; our metadata replaces the template's."""
    return dict(template.model_fields) | {
        Model.PRODUCER_NAME: text_field(Model.PRODUCER_NAME, "sparsyedge"),
        Model.PRODUCER_VERSION: text_field(Model.PRODUCER_VERSION, metadata.version("sparsyedge")),
        Model.METADATA_PROPS: b"".join(
            bytes_field(Model.METADATA_PROPS, metadata_entry(key, value)) for key, value in entries.items()
        ),
    }


@dataclass(frozen=True)
class Weight:
    """A float32 initializer that fetches its values only when written."""

    name: str
    shape: tuple[int, ...]
    values: Callable[[], FloatArray]

    @property
    def opening(self) -> bytes:
        """The TensorProto up to its values."""
        return tensor_head(self.name, self.shape, self.value_bytes)

    @property
    def value_bytes(self) -> int:
        return 4 * int(np.prod(self.shape, dtype=np.int64))

    def content(self) -> memoryview:
        """The values as bytes."""
        values = np.ascontiguousarray(self.values(), dtype="<f4")
        if values.shape != self.shape:
            raise ValueError(f"{self.name} has shape {values.shape}, {self.shape} was announced")
        return values.reshape(-1).view(np.uint8).data


def pieces_of(model: Fields, graph: Fields, weights: Sequence[Weight]) -> Iterator[bytes | memoryview]:
    """The bytes of a model file with these weights in front of the graph's other initializers.

    A nested message begins with its length, so we compute all lengths before we fetch the first value.
    """
    heads = [head(Graph.INITIALIZER, len(each.opening) + each.value_bytes) + each.opening for each in weights]
    before, after = _split(graph, Graph.INITIALIZER)
    weight_bytes = sum(len(one) + each.value_bytes for one, each in zip(heads, weights, strict=True))
    model_before, model_after = _split(model, Model.GRAPH)
    yield model_before + head(Model.GRAPH, len(before) + weight_bytes + len(after)) + before
    for one, weight in zip(heads, weights, strict=True):
        yield one
        yield weight.content()
    yield after + model_after


def _split(message: Fields, number: int) -> tuple[bytes, bytes]:
    """The fields before a number, and the rest, in order of number."""
    before = b"".join(message[each] for each in sorted(message) if each < number)
    return before, b"".join(message[each] for each in sorted(message) if each >= number)
