"""Delivered models of signals, feature vectors and volumes, and of regressions."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from fixtures.linear_images import CLASSES, ORIGIN, Make
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from sparsyedge.edge import cli
from sparsyedge.edge.errors import ArtifactError, DataError
from sparsyedge.edge.inference import Predictor, evaluate
from sparsyedge.edge.inference.delivery import write_models
from sparsyedge.edge.inference.description import Origin, read_description
from sparsyedge.edge.model.artifacts import Parameter

ERRORS = Origin(run="first", round=7, rmse=0.25, r_squared=0.75, sparsity=0.5)
LAYOUTS = {(6,): "NF", (3, 8): "NCL", (2, 3, 4): "NCHW", (1, 2, 3, 4): "NCDHW"}
Deliver = Callable[..., Path]


@pytest.fixture
def deliver(tmp_path: Path, make_artifacts: Make) -> Deliver:
    """Delivers a linear model of samples of some shape."""

    def make(shape: tuple[int, ...], outputs: int = CLASSES, *, origin: Origin = ORIGIN, **changes: Any) -> Path:
        weight = np.random.default_rng(2).standard_normal((outputs, math.prod(shape))).astype(np.float32)
        nodes = [
            helper.make_node("Flatten", ["x"], ["flat"]),
            helper.make_node("Gemm", ["flat", "fc.weight"], ["logits"], transB=1),
        ]
        graph = helper.make_graph(
            nodes,
            "inference",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *shape])],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", outputs])],
            [numpy_helper.from_array(weight, "fc.weight")],
        )
        model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
        artifacts = make_artifacts(
            model.SerializeToString(),
            input_shape=shape,
            classes=outputs,
            sample_type="float32",
            parameters=(Parameter("fc.weight", weight.shape, trainable=True, prunable=False),),
            **changes,
        )
        write_models(tmp_path / "run", {"fc.weight": weight}, artifacts, origin)
        return tmp_path / "run" / "model.onnx"

    return make


@pytest.fixture
def regression(deliver: Deliver) -> Path:
    return deliver((6,), 2, origin=ERRORS, task="regression", class_names=("height", "weight"))


def metadata(path: Path) -> dict[str, str]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found: dict[str, str] = session.get_modelmeta().custom_metadata_map
    return {key.removeprefix("sparsyedge."): value for key, value in found.items()}


def numbers(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(4).standard_normal(shape, dtype=np.float32)


def weights_of(path: Path) -> NDArray[np.float32]:
    (tensor,) = (each for each in onnx.load(path).graph.initializer if each.name == "fc.weight")
    return numpy_helper.to_array(tensor)


@pytest.mark.parametrize("shape", LAYOUTS)
def test_a_model_takes_samples_with_the_axes_it_was_trained_on(shape: tuple[int, ...], deliver: Deliver) -> None:
    model = deliver(shape)
    onnx.checker.check_model(onnx.load(model), full_check=True)
    assert metadata(model)["layout"] == LAYOUTS[shape]
    # Older versions know no other layout than that of three axes.
    assert metadata(model)["metadata_version"] == ("1" if len(shape) == 3 else "2")
    predictor, x = Predictor(model), numbers(5, *shape)
    assert predictor.sample == shape
    logits = x.reshape(5, -1) @ weights_of(model).T
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    np.testing.assert_allclose(predictor.probabilities(x), odds / odds.sum(axis=1, keepdims=True), rtol=1e-4)


def test_a_regression_has_one_output_and_no_probabilities(regression: Path) -> None:
    onnx.checker.check_model(onnx.load(regression), full_check=True)
    session = onnxruntime.InferenceSession(str(regression), providers=["CPUExecutionProvider"])
    assert [(each.name, each.shape) for each in session.get_outputs()] == [("values", ["batch", 2])]
    x = numbers(5, 6)
    np.testing.assert_allclose(Predictor(regression).values(x), x @ weights_of(regression).T, rtol=1e-5)
    with pytest.raises(ArtifactError, match="is a regression, which has no probabilities"):
        Predictor(regression).probabilities(x)


def test_classes_have_no_values(deliver: Deliver) -> None:
    with pytest.raises(ArtifactError, match="tells classes apart and is no regression"):
        Predictor(deliver((6,))).values(numbers(1, 6))


def test_the_metadata_of_a_regression_has_errors_and_no_accuracy(regression: Path) -> None:
    found = metadata(regression)
    assert (found["task"], found["metadata_version"]) == ("regression", "2")
    assert (found["rmse"], found["r_squared"], found["output_names"]) == ("0.25", "0.75", '["height","weight"]')
    assert not {"accuracy", "class_names"} & set(found)
    description = read_description(regression)
    assert (description.accuracy, description.rmse, description.names) == (None, 0.25, ("height", "weight"))


def test_outputs_without_names_are_called_by_their_numbers(deliver: Deliver) -> None:
    model = deliver((6,), 2, origin=ERRORS, task="regression", class_names=())
    assert read_description(model).names == ("output 0", "output 1")


def test_errors_that_are_no_numbers_are_said_to_be_unknown(
    deliver: Deliver, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = Origin(run="first", round=7, rmse=math.nan, sparsity=0.5)
    model = deliver((6,), 1, origin=lost, task="regression", class_names=())
    np.savez(tmp_path / "x.npz", x=numbers(1, 6))
    assert cli.main(["predict", str(model), str(tmp_path / "x.npz")]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"{model}: run first, round 7, RMSE -, R2 -"


def test_predict_names_the_outputs_and_their_targets(
    regression: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = numbers(3, 6)
    values = x @ weights_of(regression).T
    targets = (values + np.array([[1, 0]], dtype=np.float32)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x, y=targets)
    assert cli.main(["predict", str(regression), str(tmp_path / "x.npz"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    first = document["predictions"][0]["values"]
    assert [each["name"] for each in first] == ["height", "weight"]
    assert first[0]["target"] - first[0]["value"] == pytest.approx(1, rel=1e-5)
    assert (document["labelled"], document["rmse"]) == (3, pytest.approx(math.sqrt(0.5), rel=1e-5))
    assert document["model"] == {"run": "first", "round": 7, "rmse": 0.25, "r_squared": 0.75}


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (numbers(3, 5), None, r"float32 of shape \(3, 5\); the model takes float32 \(samples, 6\)"),
        (numbers(3, 6), np.zeros(3, dtype=np.int64), r"int64 of shape \(3,\); the model is a regression: .*\(3, 2\)"),
        (numbers(3, 6), numbers(3, 3), r"float32 of shape \(3, 3\); the model is a regression"),
        (numbers(3, 6), np.full((3, 2), np.nan, dtype=np.float32), "holds NaN or infinity"),
    ],
)
def test_what_a_regression_cannot_take_is_refused_in_a_sentence(
    regression: Path, x: Any, y: Any, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "x.npz", **({"x": x} if y is None else {"x": x, "y": y}))
    assert cli.main(["predict", str(regression), str(tmp_path / "x.npz")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(message, error), error


def test_data_of_classes_is_no_test_of_a_regression(regression: Path, tmp_path: Path) -> None:
    x, y = numbers(4, 6), np.arange(4) % 2
    np.savez(tmp_path / "data.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(DataError, match=r"is int64 of shape \(4,\); the model is a regression"):
        evaluate(regression, str(tmp_path / "data.npz"))


def test_a_file_that_claims_pixels_without_the_axes_of_an_image_is_refused(deliver: Deliver) -> None:
    model = deliver((6,))
    loaded = onnx.load(model)
    for entry in loaded.metadata_props:
        if entry.key == "sparsyedge.sample_type":
            entry.value = "uint8"
    onnx.save(loaded, model)
    with pytest.raises(ArtifactError, match="lacks the input and the outputs of such a model"):
        Predictor(model)
