"""Artifacts of a model simple enough for numpy: flatten, one linear layer, one BatchNorm."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from fixtures.scripted_fleet import Fleet
from onnx import TensorProto, helper, numpy_helper

from sparsyedge.coordinator.record.store_reader import StoreReader
from sparsyedge.edge.model.artifacts import LAST_WITH_API_FILES, Artifacts, BatchNorm, File, Manifest, Parameter
from sparsyedge.edge.model.methods import Method
from sparsyedge.edge.native import ABI_VERSION
from sparsyedge.edge.tensors import State, model_id

CLASSES, FEATURES = 4, 512


@pytest.fixture(autouse=True)
def _stores_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the stores that a test leaves open: Python 3.13 would complain about them in the middle of another test."""
    opened: list[StoreReader] = []
    open_store = StoreReader.__init__

    def remember(self: StoreReader, path: Path) -> None:
        open_store(self, path)
        opened.append(self)

    monkeypatch.setattr(StoreReader, "__init__", remember)
    yield
    for store in opened:
        store.close()


@pytest.fixture
def initial() -> State:
    """The state that the checkpoint holds."""
    generator = np.random.default_rng(11)
    return {
        "fc.weight": generator.standard_normal((CLASSES, FEATURES)).astype(np.float32),
        "fc.bias": generator.standard_normal(CLASSES).astype(np.float32),
        "bn.weight": np.ones(CLASSES, dtype=np.float32),
        "bn.bias": np.zeros(CLASSES, dtype=np.float32),
        "bn.running_mean": np.zeros(CLASSES, dtype=np.float32),
        "bn.running_var": np.ones(CLASSES, dtype=np.float32),
    }


@pytest.fixture
def manifest(initial: State) -> Manifest:
    """A manifest for that state: half of the linear layer's weights are pruned."""
    return Manifest(
        version=LAST_WITH_API_FILES,
        ops_abi=ABI_VERSION,
        model="linear",
        width=1,
        classes=CLASSES,
        input_shape=(FEATURES, 1, 1),
        method=Method(
            name="sparsyfed",
            beta=1.25,
            sparsity=0.5,
            weight_decay=1e-3,
            prune_activations=True,
            zero_grad_at_zero=False,
        ),
        seed=0,
        opset=17,
        made_with={},
        parameters=tuple(
            Parameter(name, tensor.shape, trainable="running" not in name, prunable=name == "fc.weight")
            for name, tensor in initial.items()
        ),
        batch_norms=(BatchNorm("bn.running_mean", "bn.running_var", "mean_out", "var_out", 1),),
        batch_norm_momentum=0.9,
        initial_model=model_id(initial),
        files={},
    )


@pytest.fixture
def template(initial: State) -> onnx.ModelProto:
    """The plain inference graph of the export, with placeholder weights."""
    nodes = [
        helper.make_node("Flatten", ["x"], ["flat"]),
        helper.make_node("Gemm", ["flat", "fc.weight", "fc.bias"], ["linear"], transB=1),
        helper.make_node(
            "BatchNormalization", ["linear", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"], ["logits"]
        ),
    ]
    graph = helper.make_graph(
        nodes,
        "inference",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", FEATURES, 1, 1])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])],
        [numpy_helper.from_array(np.zeros_like(tensor), name) for name, tensor in initial.items()],
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


@pytest.fixture
def artifacts(tmp_path: Path, manifest: Manifest, template: onnx.ModelProto) -> Artifacts:
    """A folder of artifacts; only the inference graph is a real one, nothing here trains."""
    directory = tmp_path / "artifacts"
    directory.mkdir()
    contents = {
        "training": b"training graph" * 20_000,
        "eval": b"eval graph",
        "optimizer": b"optimizer graph",
        "checkpoint": b"checkpoint",
        "inference": template.SerializeToString(),
        "sparse_plan": b"plan graph",
        "sparse_step": b"step graph",
    }
    for role, content in contents.items():
        (directory / role).write_bytes(content)
        manifest.files[role] = File(role, hashlib.sha256(content).hexdigest(), len(content))
    artifacts = Artifacts(directory, manifest)
    artifacts.save_manifest()
    return artifacts


@pytest.fixture
def fleet(mosquitto: int, tmp_path: Path, artifacts: Artifacts, initial: State) -> Iterator[Fleet]:
    fleet = Fleet(mosquitto, tmp_path, artifacts, initial)
    yield fleet
    for device in fleet.devices:
        device.link.close()
