"""model.onnx."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from sparsyedge.coordinator.deliver import inference_model, write_model
from sparsyedge.edge.artifacts import Artifacts, Manifest
from sparsyedge.edge.errors import ArtifactError
from sparsyedge.edge.reparametrise import power
from sparsyedge.edge.tensors import State


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


def test_ir_version_and_opset_stay(initial: State, manifest: Manifest, template: onnx.ModelProto) -> None:
    model = inference_model(template, initial, manifest)
    assert (model.ir_version, model.opset_import) == (template.ir_version, template.opset_import)


def test_the_same_state_gives_the_same_bytes(tmp_path: Path, initial: State, artifacts: Artifacts) -> None:
    for name in ("a", "b"):
        write_model(tmp_path / name, initial, artifacts)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_an_op_of_another_domain_is_refused(initial: State, manifest: Manifest, template: onnx.ModelProto) -> None:
    template.opset_import.append(helper.make_opsetid("sparsyedge", 1))
    with pytest.raises(ArtifactError, match="uses ops of domain 'sparsyedge'"):
        inference_model(template, initial, manifest)


def test_a_missing_initializer_is_named(initial: State, manifest: Manifest, template: onnx.ModelProto) -> None:
    template.graph.initializer[1].name = "renamed"
    with pytest.raises(ArtifactError, match=r"has no initializer fc\.bias of shape"):
        inference_model(template, initial, manifest)


def test_a_template_that_is_no_model_is_refused(tmp_path: Path, initial: State, artifacts: Artifacts) -> None:
    artifacts.path("inference").write_bytes(b"\xff\xff\xff")
    with pytest.raises(ArtifactError, match="is not an ONNX model"):
        write_model(tmp_path / "model.onnx", initial, artifacts)
    assert not (tmp_path / "model.onnx").exists()


def test_power_keeps_zeros_and_signs() -> None:
    weights = np.array([-4.0, -0.5, 0.0, 0.5, 4.0], dtype=np.float32)
    theta = power(weights, 1.25)
    np.testing.assert_allclose(theta, np.sign(weights) * np.abs(weights) ** 1.25, rtol=1e-6)
    assert theta[2] == 0
    assert theta.dtype == np.float32
