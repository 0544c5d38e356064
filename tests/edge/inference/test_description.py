"""What a model says about itself, read from a file that may be anything."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from fixtures.linear_images import ORIGIN, Make
from onnx import TensorProto, helper

from sparsyedge.edge.errors import ArtifactError
from sparsyedge.edge.inference import description
from sparsyedge.edge.inference.delivery import write_models
from sparsyedge.edge.inference.description import read_description
from sparsyedge.edge.inference.predictor import Predictor
from sparsyedge.edge.tensors import State


@pytest.fixture
def model(tmp_path: Path, state: State, make_artifacts: Make) -> Path:
    write_models(tmp_path, state, make_artifacts(), ORIGIN)
    return tmp_path / "model.onnx"


def rewrite(path: Path, **metadata: str | None) -> None:
    """Change the model's metadata, or take some of it away."""
    loaded = onnx.load_model(path)
    values = {entry.key: entry.value for entry in loaded.metadata_props}
    values |= {f"sparsyedge.{key}": value for key, value in metadata.items() if value is not None}
    for key, value in metadata.items():
        if value is None:
            del values[f"sparsyedge.{key}"]
    helper.set_model_props(loaded, values)
    onnx.save(loaded, path)


def test_a_model_says_what_it_was_given(model: Path) -> None:
    found = read_description(model)
    assert (found.run, found.round, found.accuracy, found.sparsity) == ("first", 7, 0.875, 0.5)
    assert found.class_names == ("trouser", "shoe", "hat", "Å")


def test_classes_that_nobody_named_are_called_by_their_numbers(
    tmp_path: Path, state: State, make_artifacts: Make
) -> None:
    write_models(tmp_path, state, make_artifacts(class_names=()), ORIGIN)
    assert read_description(tmp_path / "model.onnx").class_names == ("class 0", "class 1", "class 2", "class 3")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"metadata_version": None}, "has no metadata of sparsyedge"),
        (
            {"metadata_version": "2" * 100},
            "has metadata version '2{20}', this sparsyedge reads versions 1 to 2",
        ),
        ({"layout": None}, "has no metadata 'sparsyedge.layout'"),
        ({"layout": "sideways"}, "metadata that cannot be used"),
        ({"class_names": "[" * 100_000}, "metadata that cannot be used"),
        ({"class_names": "[]"}, "metadata that cannot be used"),
        ({"class_names": '["' + "x" * 201 + '"]'}, "metadata that cannot be used"),
        ({"accuracy": "NaN"}, "metadata that cannot be used"),
        ({"round": '"seven"'}, "metadata that cannot be used"),
        ({"run": "x" * 1001}, "metadata that cannot be used"),
    ],
)
def test_metadata_that_cannot_be_right_is_refused(model: Path, metadata: dict[str, str | None], message: str) -> None:
    rewrite(model, **metadata)
    with pytest.raises(ArtifactError, match=message):
        read_description(model)


def test_more_metadata_than_a_model_can_need_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(description, "MOST_METADATA_BYTES", 100)
    with pytest.raises(ArtifactError, match="bytes of metadata, 100 are allowed"):
        read_description(model)


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_text("not a model")
    with pytest.raises(ArtifactError, match="is not an ONNX model"):
        read_description(tmp_path / "model.onnx")
    with pytest.raises(ArtifactError, match="cannot read the model"):
        read_description(tmp_path / "absent.onnx")


def test_a_graph_that_does_not_fit_its_metadata_is_refused(model: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Identity", ["images"], ["probabilities"])],
        "another",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 1 << 40, 1 << 40, 3])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 1 << 40, 1 << 40, 3])],
    )
    loaded = onnx.load_model(model)
    loaded.graph.CopyFrom(graph)
    onnx.save(loaded, model)
    with pytest.raises(ArtifactError, match="lacks the input and the outputs of such a model"):
        Predictor(model)


def test_fewer_names_than_classes_are_noticed_when_the_model_is_asked(model: Path) -> None:
    rewrite(model, class_names='["alone"]')
    with pytest.raises(ArtifactError, match=r"\(2, 1\) was expected"):
        Predictor(model).probabilities(np.zeros((2, 4, 5, 3), dtype=np.uint8))
