"""model.onnx."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from sparsyedge.coordinator.deliver import emptied, write_model
from sparsyedge.coordinator.onnx_pieces import WeightPiece, pieces_of
from sparsyedge.edge.artifacts import Artifacts, Manifest
from sparsyedge.edge.errors import ArtifactError
from sparsyedge.edge.reparametrise import power
from sparsyedge.edge.tensors import FloatArray, State


def test_the_model_runs_without_our_library_and_computes_with_theta(
    tmp_path: Path, initial: State, artifacts: Artifacts
) -> None:
    initial["bn.running_mean"] = np.array([0.5, -0.5, 0.1, 0.0], dtype=np.float32)
    initial["bn.running_var"] = np.array([2.0, 1.0, 0.5, 0.1], dtype=np.float32)
    path = tmp_path / "model.onnx"
    write_model(path, initial, artifacts)
    x = np.random.default_rng(0).standard_normal((5, 512, 1, 1)).astype(np.float32)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"x": x})
    weight = initial["fc.weight"].astype(np.float64)
    linear = x.reshape(5, 512) @ (np.sign(weight) * np.abs(weight) ** 1.25).T + initial["fc.bias"]
    expected = (linear - initial["bn.running_mean"]) / np.sqrt(initial["bn.running_var"] + 1e-5)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


def test_all_but_the_weights_stays_as_it_was_exported(
    tmp_path: Path, initial: State, artifacts: Artifacts, template: onnx.ModelProto
) -> None:
    template.graph.initializer.append(numpy_helper.from_array(np.arange(3), "a constant of the graph"))
    template.graph.doc_string, template.producer_name = "behind the weights", "exporter"
    artifacts.path("inference").write_bytes(template.SerializeToString())
    write_model(tmp_path / "model.onnx", initial, artifacts)
    model = onnx.load_model(tmp_path / "model.onnx")
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    np.testing.assert_array_equal(values.pop("a constant of the graph"), np.arange(3))
    np.testing.assert_array_equal(values["fc.bias"], initial["fc.bias"])
    np.testing.assert_array_equal(values["fc.weight"], power(initial["fc.weight"], 1.25))
    assert set(values) == set(initial)
    for each in (model, template):
        del each.graph.initializer[:]
    assert model == template


def test_the_file_is_as_protobuf_would_write_it(tmp_path: Path, initial: State, artifacts: Artifacts) -> None:
    write_model(tmp_path / "model.onnx", initial, artifacts)
    content = (tmp_path / "model.onnx").read_bytes()
    assert onnx.load_model_from_string(content).SerializeToString(deterministic=True) == content


def test_weights_are_asked_for_one_at_a_time_while_the_file_is_written(template: onnx.ModelProto) -> None:
    asked: list[str] = []

    def values(name: str) -> FloatArray:
        asked.append(name)
        return np.ones((300, 200), dtype=np.float32)

    del template.graph.initializer[:]
    pieces = pieces_of(template, [WeightPiece(name, (300, 200), partial(values, name)) for name in ("a", "b")])
    seen = []
    for piece in pieces:
        if len(piece) == 4 * 300 * 200:
            seen.append(list(asked))
    assert seen == [["a"], ["a", "b"]]


def test_a_weight_of_another_shape_than_announced_is_an_error(template: onnx.ModelProto) -> None:
    with pytest.raises(ValueError, match=r"a has shape \(2,\), \(3,\) was announced"):
        list(pieces_of(template, [WeightPiece("a", (3,), lambda: np.ones(2, dtype=np.float32))]))


def test_the_same_state_gives_the_same_bytes(tmp_path: Path, initial: State, artifacts: Artifacts) -> None:
    for name in ("a", "b"):
        write_model(tmp_path / name, initial, artifacts)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_an_op_of_another_domain_is_refused(manifest: Manifest, template: onnx.ModelProto) -> None:
    template.opset_import.append(helper.make_opsetid("sparsyedge", 1))
    with pytest.raises(ArtifactError, match="uses ops of domain 'sparsyedge'"):
        emptied(template, manifest)


def test_a_missing_initializer_is_named(manifest: Manifest, template: onnx.ModelProto) -> None:
    template.graph.initializer[1].name = "renamed"
    with pytest.raises(ArtifactError, match=r"has no initializer fc\.bias of shape"):
        emptied(template, manifest)


def test_a_template_that_is_no_model_is_refused(tmp_path: Path, initial: State, artifacts: Artifacts) -> None:
    artifacts.path("inference").write_bytes(b"\xff\xff\xff")
    with pytest.raises(ArtifactError, match="is not an ONNX model"):
        write_model(tmp_path / "model.onnx", initial, artifacts)
    assert not (tmp_path / "model.onnx").exists()


def test_a_template_that_is_no_valid_graph_is_refused(
    tmp_path: Path, initial: State, artifacts: Artifacts, template: onnx.ModelProto
) -> None:
    template.graph.node[1].input[0] = "nobody's output"
    artifacts.path("inference").write_bytes(template.SerializeToString())
    with pytest.raises(ArtifactError, match="makes no valid ONNX model"):
        write_model(tmp_path / "model.onnx", initial, artifacts)


def test_power_keeps_zeros_and_signs() -> None:
    weights = np.array([-4.0, -0.5, 0.0, 0.5, 4.0], dtype=np.float32)
    theta = power(weights, 1.25)
    np.testing.assert_allclose(theta, np.sign(weights) * np.abs(weights) ** 1.25, rtol=1e-6)
    assert theta[2] == 0
    assert theta.dtype == np.float32
