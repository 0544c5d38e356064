"""Artifacts of a model that tests can compute with numpy: flatten, one linear layer. Its input is a small image."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from fixtures.linear_images import CLASSES, FEATURES, ORIGIN, SAMPLE, Make
from onnx import TensorProto, helper, numpy_helper

from sparsyedge.edge.inference.delivery import write_models
from sparsyedge.edge.model.artifacts import MANIFEST_VERSION, Artifacts, File, Manifest, Parameter
from sparsyedge.edge.model.methods import Method
from sparsyedge.edge.native import ABI_VERSION
from sparsyedge.edge.tensors import State, model_id


@pytest.fixture
def state() -> State:
    generator = np.random.default_rng(11)
    return {
        "fc.weight": generator.standard_normal((CLASSES, FEATURES)).astype(np.float32),
        "fc.bias": generator.standard_normal(CLASSES).astype(np.float32),
    }


@pytest.fixture
def manifest(state: State) -> Manifest:
    method = Method(
        name="sparsyfed", beta=1.25, sparsity=0.5, weight_decay=1e-3, prune_activations=True, zero_grad_at_zero=False
    )
    return Manifest(
        version=MANIFEST_VERSION,
        ops_abi=ABI_VERSION,
        model="linear",
        width=1,
        classes=CLASSES,
        input_shape=SAMPLE,
        method=method,
        seed=0,
        opset=17,
        made_with={},
        parameters=tuple(
            Parameter(name, tensor.shape, trainable=True, prunable=name == "fc.weight")
            for name, tensor in state.items()
        ),
        batch_norms=(),
        batch_norm_momentum=0.9,
        initial_model=model_id(state),
        files={},
        class_names=("trouser", "shoe", "hat", "Å"),
    )


@pytest.fixture
def template(state: State) -> onnx.ModelProto:
    """An export's plain inference graph, before it gets trained weights."""
    nodes = [
        helper.make_node("Flatten", ["x"], ["flat"]),
        helper.make_node("Gemm", ["flat", "fc.weight", "fc.bias"], ["logits"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "inference",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *SAMPLE])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])],
        [numpy_helper.from_array(np.zeros_like(tensor), name) for name, tensor in state.items()],
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


@pytest.fixture
def make_artifacts(tmp_path: Path, manifest: Manifest, template: onnx.ModelProto) -> Make:
    """Makes artifacts with changes to the manifest, and with that graph or any other bytes instead."""

    def make(inference: bytes | None = None, **changes: Any) -> Artifacts:
        directory = tmp_path / "artifacts"
        directory.mkdir(exist_ok=True)
        content = template.SerializeToString() if inference is None else inference
        (directory / "inference").write_bytes(content)
        file = File("inference", hashlib.sha256(content).hexdigest(), len(content))
        return Artifacts(directory, msgspec.structs.replace(manifest, files={"inference": file}, **changes))

    return make


@pytest.fixture
def artifacts(make_artifacts: Make) -> Artifacts:
    return make_artifacts()


@pytest.fixture
def brightest() -> State:
    """Weights that predict the class from the brightest row of an image."""
    weight = np.zeros((CLASSES, *SAMPLE), dtype=np.float32)
    for label in range(CLASSES):
        weight[label, :, label, :] = 1
    return {"fc.weight": weight.reshape(CLASSES, FEATURES), "fc.bias": np.zeros(CLASSES, dtype=np.float32)}


@pytest.fixture
def run_dir(tmp_path: Path, brightest: State, make_artifacts: Make) -> Path:
    write_models(tmp_path / "run", brightest, make_artifacts(), ORIGIN)
    return tmp_path / "run"
