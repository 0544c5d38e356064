"""The exported inference graph without its weights: the skeleton of a delivered model.

The graph comes from an export with a matching hash, but nothing runs it here. We check everything that a delivered
model relies on: an unsuitable graph fails before a run begins, not at its end.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sparsyedge.edge.errors import ArtifactError
from sparsyedge.edge.inference.onnx_format import FLOAT, Graph, Model, Node, Tensor, ValueInfo, read_opset
from sparsyedge.edge.inference.protobuf import Field, Malformed, bytes_field, fields
from sparsyedge.edge.model.artifacts import Artifacts, Manifest

__all__ = ["Template", "read_template", "strip_weights"]

STANDARD_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml"})
LEAST_OPSET = 13
"""The lowest opset that has the standard ops a delivered model adds."""
LEAST_IR_VERSION = 4
"""The first version in which weights need not be graph inputs as well."""
REMEDY = "run `sparsyedge export` again"


@dataclass(frozen=True)
class Template:
    """A graph without weights; fields are the file's own bytes, by number."""

    model_fields: Mapping[int, bytes]
    """The whole model except the graph."""
    graph_fields: Mapping[int, bytes]
    """The whole graph except its inputs, its outputs and the initializers that a state provides."""
    input: str
    """The graph's name for a batch scaled as in training."""
    logits: str
    names: frozenset[str]
    """Every tensor name in the graph; new tensors need other names."""


def read_template(artifacts: Artifacts) -> Template:
    """The inference graph of the artifacts; raises ArtifactError if no model can be made from it.

    The skeleton is enough, and all that a device fetches.
    """
    manifest = artifacts.manifest
    path = artifacts.path(manifest.template_role)
    try:
        return _parse(_mapped(path), manifest)
    except Malformed as error:
        raise ArtifactError(f"{path} is not an ONNX model: {error}; {REMEDY}") from error
    except _Unsuitable as error:
        raise ArtifactError(f"the inference graph {path} {error}; {REMEDY}") from error


def _mapped(path: Path) -> memoryview:
    """The file's bytes. Nearly all of them are weights, which nobody reads here: mapped, they take no memory."""
    with path.open("rb") as file:
        is_empty = os.fstat(file.fileno()).st_size == 0
        return memoryview(b"" if is_empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def strip_weights(content: bytes, names: Container[str]) -> bytes:
    """An inference graph without the values of these initializers, which is all that is large about it."""
    model = b""
    for field in fields(memoryview(content)):
        if field.number != Model.GRAPH:
            model += field.raw
            continue
        graph = bytearray()
        for part in fields(field.content()):
            if part.number == Graph.INITIALIZER and (tensor := Tensor.read(part.content())).name in names:
                graph += bytes_field(Graph.INITIALIZER, tensor.without_values())
            else:
                graph += part.raw
        model += bytes_field(Model.GRAPH, bytes(graph))
    return model


class _Unsuitable(Exception):
    """An ONNX model that cannot be delivered; the text continues a sentence that begins with its name."""


def _parse(content: memoryview, manifest: Manifest) -> Template:
    model = list(fields(content))
    graphs = [field.content() for field in model if field.number == Model.GRAPH]
    if len(graphs) != 1:
        raise Malformed(f"it has {len(graphs)} graphs, not one")
    _check_versions(model)
    graph = list(fields(graphs[0]))
    initializers = [(field, Tensor.read(field.content())) for field in graph if field.number == Graph.INITIALIZER]
    _check_weights((tensor for _, tensor in initializers), manifest)
    initializer_names = frozenset(tensor.name for _, tensor in initializers)
    entry = _only_input(graph, initializer_names, manifest)
    logits = _only_output(graph, manifest)
    names = _check_nodes(graph, initializer_names | {entry})
    if logits not in names:
        raise _Unsuitable(f"has an output {logits[:64]!r} that no node makes")
    weights = {id(field) for field, tensor in initializers if tensor.name in manifest.shapes}
    return Template(
        model_fields=_joined(field for field in model if field.number != Model.GRAPH),
        graph_fields=_joined(
            field for field in graph if field.number not in (Graph.INPUT, Graph.OUTPUT) and id(field) not in weights
        ),
        input=entry,
        logits=logits,
        names=names,
    )


def _joined(kept: Iterable[Field]) -> dict[int, bytes]:
    joined: dict[int, bytearray] = {}
    for field in kept:
        joined.setdefault(field.number, bytearray()).extend(field.raw)
    return {number: bytes(content) for number, content in joined.items()}


def _check_versions(model: list[Field]) -> None:
    ir_version = max((field.integer() for field in model if field.number == Model.IR_VERSION), default=0)
    if ir_version < LEAST_IR_VERSION:
        raise _Unsuitable(f"has IR version {ir_version}, at least {LEAST_IR_VERSION} is needed")
    opsets = dict(read_opset(field.content()) for field in model if field.number == Model.OPSET_IMPORT)
    foreign = opsets.keys() - STANDARD_DOMAINS
    if foreign:
        raise _Unsuitable(f"uses ops of domain {min(foreign)[:64]!r}, only standard ones are allowed")
    version = opsets.get("", opsets.get("ai.onnx", 0))
    if version < LEAST_OPSET:
        raise _Unsuitable(f"has opset {version}, at least {LEAST_OPSET} is needed")


def _check_weights(tensors: Iterable[Tensor], manifest: Manifest) -> None:
    found = {tensor.name: (tensor.shape, tensor.element) for tensor in tensors}
    for name, shape in manifest.shapes.items():
        if found.get(name) != (shape, FLOAT):
            raise _Unsuitable(f"has no initializer {name} of shape {shape} in float32, which the manifest names")


def _only_input(graph: list[Field], initializers: frozenset[str], manifest: Manifest) -> str:
    found = [ValueInfo.read(field.content()) for field in graph if field.number == Graph.INPUT]
    found = [each for each in found if each.name not in initializers]
    if len(found) != 1 or found[0].element != FLOAT or found[0].shape[1:] != manifest.input_shape:
        raise _Unsuitable(f"must have one input of float32 with samples of shape {manifest.input_shape}, it has others")
    return found[0].name


def _only_output(graph: list[Field], manifest: Manifest) -> str:
    found = [ValueInfo.read(field.content()) for field in graph if field.number == Graph.OUTPUT]
    if len(found) != 1 or found[0].element != FLOAT or found[0].shape[1:] != (manifest.outputs,):
        raise _Unsuitable(f"must have one output of float32 with {manifest.outputs} values a sample, it has others")
    return found[0].name


def _check_nodes(graph: list[Field], known: frozenset[str]) -> frozenset[str]:
    """All names in the graph; raises if a node reads one that nothing before it makes."""
    names = set(known)
    for field in graph:
        if field.number != Graph.NODE:
            continue
        node = Node.read(field.content())
        missing = next((each for each in node.inputs if each and each not in names), None)
        if missing is not None:
            raise _Unsuitable(f"has a node {node.op[:64]} that reads {missing[:64]!r}, which nothing before it makes")
        names.update(node.outputs)
    return frozenset(names)
