"""model.onnx and model_float.onnx: what they take, what they compute, and that ONNX's own checker likes them."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from fixtures.linear_images import FEATURES, ORIGIN, SAMPLE, Make
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from sparsyedge.edge.data import Samples
from sparsyedge.edge.data.form import SampleType
from sparsyedge.edge.inference.delivery import Weight, pieces_of, write_models
from sparsyedge.edge.model.artifacts import Artifacts, Parameter
from sparsyedge.edge.model.checkpoint import read_initial_state
from sparsyedge.edge.model.reparametrise import power
from sparsyedge.edge.tensors import FloatArray, State, dense_bytes

TYPES: tuple[SampleType, ...] = ("uint8", "int16", "float32")


def stored_samples(sample_type: SampleType, count: int = 300) -> NDArray[Any]:
    """Samples as a data set stores them, with every pixel value among them."""
    generator = np.random.default_rng(0)
    if sample_type == "float32":
        return generator.standard_normal((count, *SAMPLE), dtype=np.float32)
    limits = np.iinfo(sample_type)
    return generator.integers(limits.min, limits.max + 1, (count, *SAMPLE), dtype=sample_type)


def as_trained(stored: NDArray[Any]) -> FloatArray:
    return Samples(stored, np.zeros(len(stored), dtype=np.int64)).batch(np.arange(len(stored)))[0]


def run(path: Path, x: NDArray[Any]) -> tuple[FloatArray, FloatArray]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (entry,) = session.get_inputs()
    assert [each.name for each in session.get_outputs()] == ["logits", "probabilities"]
    logits, probabilities = session.run(None, {entry.name: x})
    return logits, probabilities


def test_images_as_people_have_them_give_what_training_would_compute(
    tmp_path: Path, state: State, artifacts: Artifacts
) -> None:
    write_models(tmp_path, state, artifacts, ORIGIN)
    stored = stored_samples("uint8")
    weight = state["fc.weight"].astype(np.float64)
    theta = np.sign(weight) * np.abs(weight) ** 1.25
    expected = as_trained(stored).reshape(-1, FEATURES) @ theta.T + state["fc.bias"]
    odds = np.exp(expected - expected.max(axis=1, keepdims=True))
    for name, x in (
        ("model.onnx", stored.transpose(0, 2, 3, 1)),
        ("model_float.onnx", stored / np.float32(255)),
    ):
        logits, probabilities = run(tmp_path / name, np.ascontiguousarray(x))
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(probabilities, odds / odds.sum(axis=1, keepdims=True), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("sample_type", TYPES)
def test_the_graph_sees_the_bits_that_training_saw(
    tmp_path: Path, sample_type: SampleType, make_artifacts: Make
) -> None:
    graph = helper.make_graph(
        [helper.make_node("Flatten", ["x"], ["logits"])],
        "nothing but its input",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *SAMPLE])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", FEATURES])],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    artifacts = make_artifacts(
        model.SerializeToString(), sample_type=sample_type, parameters=(), classes=FEATURES, class_names=()
    )
    write_models(tmp_path, {}, artifacts, ORIGIN)
    stored = stored_samples(sample_type)
    given = {"model.onnx": stored.transpose(0, 2, 3, 1) if sample_type == "uint8" else stored}
    if sample_type == "uint8":
        given["model_float.onnx"] = stored / np.float32(255)
    for name, x in given.items():
        logits, _ = run(tmp_path / name, np.ascontiguousarray(x))
        np.testing.assert_array_equal(logits.view(np.uint32), as_trained(stored).reshape(-1, FEATURES).view(np.uint32))
    assert {path.name for path in tmp_path.glob("*.onnx")} == set(given)


@pytest.mark.parametrize("sample_type", TYPES)
def test_onnx_finds_nothing_wrong_and_would_write_the_same_bytes(
    tmp_path: Path, state: State, sample_type: SampleType, make_artifacts: Make
) -> None:
    write_models(tmp_path, state, make_artifacts(sample_type=sample_type), ORIGIN)
    for path in tmp_path.glob("*.onnx"):
        content = path.read_bytes()
        model = onnx.load_model_from_string(content)
        onnx.checker.check_model(model, full_check=True)
        assert model.SerializeToString(deterministic=True) == content


def test_the_metadata_says_what_to_give_and_what_comes_back(tmp_path: Path, state: State, artifacts: Artifacts) -> None:
    write_models(tmp_path, state, artifacts, ORIGIN)
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    (entry,) = session.get_inputs()
    assert (entry.name, entry.type, entry.shape) == ("images", "tensor(uint8)", ["batch", 4, 5, 3])
    assert session.get_modelmeta().custom_metadata_map == {
        "sparsyedge.metadata_version": "1",
        "sparsyedge.layout": "NHWC",
        "sparsyedge.dtype": "uint8",
        "sparsyedge.scaling": "give pixels of 0..255 as they are; the graph makes (v / 255 - 0.5) / 0.5 of them",
        "sparsyedge.sample_type": "uint8",
        "sparsyedge.class_names": '["trouser","shoe","hat","Å"]',
        "sparsyedge.run": "first",
        "sparsyedge.round": "7",
        "sparsyedge.accuracy": "0.875",
        "sparsyedge.sparsity": "0.5",
        "sparsyedge.method": "sparsyfed",
    }


def test_all_but_input_and_output_stays_as_it_was_exported(
    tmp_path: Path, state: State, make_artifacts: Make, template: onnx.ModelProto
) -> None:
    template.graph.initializer.append(numpy_helper.from_array(np.arange(3), "a constant of the graph"))
    template.graph.doc_string = "behind the weights"
    write_models(tmp_path, state, make_artifacts(template.SerializeToString()), ORIGIN)
    model = onnx.load_model(tmp_path / "model.onnx")
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    np.testing.assert_array_equal(values["a constant of the graph"], np.arange(3))
    np.testing.assert_array_equal(values["fc.bias"], state["fc.bias"])
    np.testing.assert_array_equal(values["fc.weight"], power(state["fc.weight"], 1.25))
    nodes = list(model.graph.node)
    before = [node.op_type for node in nodes].index("Flatten")
    assert nodes[before:-1] == list(template.graph.node)
    assert [node.op_type for node in nodes[:before]] == ["Transpose", "Cast", "Div", "Sub", "Div"]
    assert (model.graph.doc_string, model.graph.name) == ("behind the weights", "inference")
    assert (model.ir_version, list(model.opset_import)) == (8, list(template.opset_import))


def test_the_same_state_gives_the_same_bytes(tmp_path: Path, state: State, artifacts: Artifacts) -> None:
    for name in ("a", "b"):
        write_models(tmp_path / name, state, artifacts, ORIGIN)
    for name in ("model.onnx", "model_float.onnx"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_weights_are_asked_for_one_at_a_time_while_the_file_is_written() -> None:
    asked: list[str] = []

    def values(name: str) -> FloatArray:
        asked.append(name)
        return np.ones((300, 200), dtype=np.float32)

    weights = [Weight(name, (300, 200), partial(values, name)) for name in ("a", "b")]
    seen = [list(asked) for piece in pieces_of({}, {}, weights) if len(piece) == 4 * 300 * 200]
    assert seen == [["a"], ["a", "b"]]


def test_writing_takes_less_memory_than_two_dense_models(
    tmp_path: Path, make_artifacts: Make, template: onnx.ModelProto
) -> None:
    deep = {f"{number}.weight": np.ones((512, 512), dtype=np.float32) for number in range(8)}
    parameters = tuple(Parameter(name, each.shape, trainable=True, prunable=True) for name, each in deep.items())
    del template.graph.initializer[:]
    template.graph.initializer.extend(numpy_helper.from_array(np.zeros_like(each), n) for n, each in deep.items())
    template.graph.node[1].op_type, template.graph.node[1].input[:] = "Identity", ["flat"]
    artifacts = make_artifacts(template.SerializeToString(), parameters=parameters)
    tracemalloc.start()
    try:
        write_models(tmp_path, deep, artifacts, ORIGIN)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The exported file while it is read, and then some layers at a time.
    assert peak < 1.5 * dense_bytes(deep)


def test_a_weight_of_another_shape_than_announced_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"a has shape \(2,\), \(3,\) was announced"):
        list(pieces_of({}, {}, [Weight("a", (3,), lambda: np.ones(2, dtype=np.float32))]))


ALONE = """
import sys
for name in ("onnx", "torch", "google", "google.protobuf"):
    sys.modules[name] = None
from pathlib import Path
from sparsyedge.edge.data.form import SampleType
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.checkpoint import read_initial_state
from sparsyedge.edge.inference.delivery import write_models
from sparsyedge.edge.inference.description import Origin
artifacts = Artifacts.load(Path(sys.argv[1]))
origin = Origin(run="alone", round=1, accuracy=0.5, sparsity=0.9)
write_models(Path(sys.argv[2]), read_initial_state(artifacts), artifacts, origin)
print("onnxruntime" in sys.modules)
"""


def test_a_machine_without_onnx_torch_and_protobuf_writes_the_model(tmp_path: Path, tiny: Artifacts) -> None:
    command = [sys.executable, "-c", ALONE, str(tiny.directory), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False"
    onnx.checker.check_model(onnx.load_model(tmp_path / "model.onnx"), full_check=True)


STOCK = """
import json, sys, numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1])
images = numpy.load(sys.argv[2])
print(json.dumps([each.tolist() for each in session.run(None, {"images": images})]))
"""


def test_the_newest_stock_onnxruntime_computes_the_same(tmp_path: Path, tiny: Artifacts, stock_python: Path) -> None:
    write_models(tmp_path, read_initial_state(tiny), tiny, ORIGIN)
    images = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 3), dtype=np.uint8)
    np.save(tmp_path / "images.npy", images)
    command = [str(stock_python), "-c", STOCK, str(tmp_path / "model.onnx"), str(tmp_path / "images.npy")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    for ours, stock in zip(run(tmp_path / "model.onnx", images), json.loads(done.stdout), strict=True):
        np.testing.assert_allclose(ours, stock, rtol=1e-4, atol=1e-5)
