"""What is refused as the graph of a delivered model, before a run begins."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from fixtures.linear_images import ORIGIN, Make
from onnx import TensorProto, helper

from sparsyedge.edge.errors import ArtifactError
from sparsyedge.edge.inference.delivery import check_deliverable, write_models
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.tensors import State

Alter = Callable[[onnx.ModelProto], object]


def test_an_exported_model_can_be_delivered(tiny: Artifacts) -> None:
    check_deliverable(tiny)


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (lambda m: m.opset_import.append(helper.make_opsetid("sparsyedge", 1)), "uses ops of domain 'sparsyedge'"),
        (lambda m: setattr(m.opset_import[0], "version", 12), "has opset 12, at least 13"),
        (lambda m: setattr(m, "ir_version", 3), "has IR version 3"),
        (lambda m: setattr(m.graph.initializer[1], "name", "renamed"), r"no initializer fc\.bias of shape \(4,\)"),
        (lambda m: setattr(m.graph.initializer[1], "data_type", TensorProto.INT32), r"no initializer fc\.bias"),
        (lambda m: m.graph.node[1].input.__setitem__(0, "nobody's"), r"node Gemm that reads \"nobody's\""),
        (lambda m: m.graph.output[0].__setattr__("name", "nothing"), "output 'nothing' that no node makes"),
        (lambda m: m.graph.input.append(m.graph.output[0]), "must have one input"),
        (lambda m: m.graph.output.append(m.graph.output[0]), "must have one output"),
        (lambda m: m.graph.input[0].type.tensor_type.shape.dim[1].__setattr__("dim_value", 9), "must have one input"),
        (lambda m: m.graph.node[0].output.append("probabilities"), "has a tensor 'probabilities'"),
        (lambda m: m.graph.node[0].output.append("images"), "has a tensor 'images'"),
        (lambda m: m.ClearField("graph"), "it has 0 graphs"),
    ],
)
def test_a_graph_that_cannot_be_delivered_is_refused(
    alter: Alter, message: str, make_artifacts: Make, template: onnx.ModelProto, state: State, tmp_path: Path
) -> None:
    alter(template)
    artifacts = make_artifacts(template.SerializeToString())
    with pytest.raises(ArtifactError, match=message):
        check_deliverable(artifacts)
    with pytest.raises(ArtifactError, match="export` again"):
        write_models(tmp_path, state, artifacts, ORIGIN)
    assert not list(tmp_path.glob("*.onnx"))


def test_names_for_other_than_all_classes_are_refused(make_artifacts: Make) -> None:
    with pytest.raises(ArtifactError, match="names 1 classes and says that there are 4"):
        check_deliverable(make_artifacts(class_names=("alone",)))


@pytest.mark.parametrize("content", [b"", b"\xff\xff\xff", b"\x3a\x05ab", b"\x80" * 50, b"\x0b\x00", b"\x00\x00"])
def test_bytes_that_are_no_model_are_refused(content: bytes, make_artifacts: Make) -> None:
    with pytest.raises(ArtifactError, match="is not an ONNX model"):
        check_deliverable(make_artifacts(content))


def test_a_damaged_file_is_refused_or_understood_and_never_a_surprise(
    make_artifacts: Make, template: onnx.ModelProto
) -> None:
    content = template.SerializeToString()
    chance = random.Random(3)
    refusals = []
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        damaged = damaged[: chance.choice([len(damaged), chance.randrange(len(damaged))])]
        try:
            check_deliverable(make_artifacts(bytes(damaged)))
        except ArtifactError as error:
            refusals.append(str(error))
    assert refusals
    assert max(map(len, refusals)) < 1000
