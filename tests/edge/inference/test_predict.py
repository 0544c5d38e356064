"""`sparsyedge predict`: files in, names and probabilities out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fixtures.linear_images import CLASSES, ORIGIN, SAMPLE, Make
from numpy.typing import NDArray
from onnx import numpy_helper
from PIL import Image

from sparsyedge.edge import cli
from sparsyedge.edge.inference.delivery import write_models
from sparsyedge.edge.inference.inputs import recoloured
from sparsyedge.edge.model.artifacts import Parameter
from sparsyedge.edge.tensors import State

NAMES = ("trouser", "shoe", "hat", "Å")
BOTH = pytest.mark.parametrize("model", ["model.onnx", "model_float.onnx"])


def picture(label: int, *, scale: int = 1) -> NDArray[np.uint8]:
    """An image (height, width, channels) whose row number `label` is white."""
    pixels = np.zeros((4, 5, 3), dtype=np.uint8)
    pixels[label] = 255
    return pixels.repeat(scale, axis=0).repeat(scale, axis=1)


def predict(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    code = cli.main(["predict", *map(str, arguments)])
    output = capsys.readouterr()
    assert code == 0, output.err
    return output.out.splitlines()


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert cli.main(["predict", *map(str, arguments)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("sparsyedge: error: ")
    assert error.count("\n") == 1
    return error


@BOTH
def test_each_image_is_named_with_its_likeliest_classes(
    model: str, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for label, suffix in enumerate((".png", ".ppm", ".bmp", ".PNG")):
        Image.fromarray(picture(label)).save(tmp_path / f"{label}{suffix}")
    files = sorted(tmp_path.glob("[0-3].*"))
    title, *lines = predict(capsys, run_dir / model, *files, "--top", 2)
    assert title == f"{run_dir / model}: run first, round 7, accuracy 87.5%"
    for file, line, name in zip(files, lines, NAMES, strict=True):
        place, _, seen = line.partition(": ")
        assert place == str(file)
        assert seen.startswith(f"{name} 100.0%, ")
        assert seen.count("%") == 2


def test_an_image_of_another_size_and_with_alpha_is_fitted_and_that_is_said(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = Image.fromarray(picture(2, scale=10))
    large.putalpha(128)
    large.save(tmp_path / "large.png")
    _, line = predict(capsys, run_dir / "model.onnx", tmp_path / "large.png", "--top", 1)
    assert line == f"{tmp_path / 'large.png'} (resized from 50x40 to 5x4): hat 100.0%"


@pytest.mark.parametrize("channels", [1, 3])
def test_grey_and_colour_become_what_the_model_takes(
    channels: int, tmp_path: Path, make_artifacts: Make, template: onnx.ModelProto, capsys: pytest.CaptureFixture[str]
) -> None:
    template.graph.input[0].type.tensor_type.shape.dim[1].dim_value = channels
    weight = np.eye(CLASSES, dtype=np.float32)[:, None, :, None].repeat(channels, 1).repeat(5, 3)
    state = {"fc.weight": weight.reshape(CLASSES, -1), "fc.bias": np.zeros(CLASSES, dtype=np.float32)}
    del template.graph.initializer[:]
    template.graph.initializer.extend(numpy_helper.from_array(each, name) for name, each in state.items())
    parameters = tuple(Parameter(name, each.shape, trainable=True, prunable=False) for name, each in state.items())
    artifacts = make_artifacts(template.SerializeToString(), input_shape=(channels, 4, 5), parameters=parameters)
    write_models(tmp_path, state, artifacts, ORIGIN)
    Image.fromarray(picture(1)).save(tmp_path / "colour.png")
    Image.fromarray(picture(1)[:, :, 0]).save(tmp_path / "grey.png")
    _, *lines = predict(capsys, tmp_path / "model.onnx", tmp_path / "colour.png", tmp_path / "grey.png", "--top", 1)
    assert [line.partition(": ")[2].split()[0] for line in lines] == ["shoe", "shoe"]


def test_grey_is_made_as_pillow_makes_it(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 50, 60), dtype=np.uint8)
    expected = np.asarray(Image.fromarray(pixels.transpose(1, 2, 0)).convert("L"))
    np.testing.assert_array_equal(recoloured(pixels, 1, tmp_path)[0], expected)


@BOTH
def test_samples_of_a_file_are_counted_against_its_labels(
    model: str, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = [0, 1, 2, 3] * 30
    x = np.stack([picture(label) for label in labels])
    np.savez(tmp_path / "mine.npz", x_test=x, y_test=[*labels[:-1], 0], x_train=x[:1], y_train=[0])
    _, *lines, last = predict(capsys, run_dir / model, tmp_path / "mine.npz", "--top", 1)
    assert len(lines) == 120
    assert lines[2] == f"{tmp_path / 'mine.npz'}[2]: hat 100.0%"
    assert lines[-1] == f"{tmp_path / 'mine.npz'}[119]: Å 100.0% (is trouser)"
    assert last == "right: 119 of 120 (99.2%)"


def test_labels_go_by_the_names_that_a_file_has_for_them(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.stack([picture(label) for label in range(4)])
    np.savez(tmp_path / "mine.npz", x=x, y=[3, 2, 1, 0], names=NAMES[::-1])
    assert predict(capsys, run_dir / "model.onnx", tmp_path / "mine.npz")[-1] == "right: 4 of 4 (100.0%)"
    np.savez(tmp_path / "other.npz", x=x, y=[0, 0, 0, 0], names=["a", "trouser"])
    error = refused(capsys, run_dir / "model.onnx", tmp_path / "other.npz")
    assert "has a class 'a' that the model does not know; it knows trouser, shoe, hat, Å" in error


def test_one_json_document_holds_everything(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "mine.npz", x=picture(1)[np.newaxis], y=[1])
    document = json.loads("".join(predict(capsys, run_dir / "model.onnx", tmp_path / "mine.npz", "--json")))
    (prediction,) = document["predictions"]
    assert (document["labelled"], document["right"], document["model"]["round"]) == (1, 1, 7)
    assert prediction["top"][0]["name"] == prediction["label"] == "shoe"
    assert sum(each["probability"] for each in prediction["top"]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("sample_type", "x", "wanted"),
    [
        ("int16", np.zeros((2, *SAMPLE), dtype=np.int16), None),
        ("float32", np.zeros((2, *SAMPLE), dtype=np.float32), None),
        ("uint8", np.zeros((2, 3, 4, 5), dtype=np.uint8), "takes uint8 (samples, 4, 5, 3)"),
        ("uint8", np.zeros((2, *SAMPLE), dtype=np.float32), "takes uint8 (samples, 4, 5, 3)"),
        ("int16", np.zeros((2, 16000), dtype=np.int16), "takes int16 (samples, 3, 4, 5)"),
        ("uint8", np.zeros((0, 4, 5, 3), dtype=np.uint8), "is empty"),
        ("float32", np.full((2, *SAMPLE), np.nan, dtype=np.float32), "holds NaN or infinity"),
    ],
)
def test_samples_are_taken_as_they_were_stored_for_training(
    sample_type: str,
    x: NDArray[Any],
    wanted: str | None,
    tmp_path: Path,
    state: State,
    make_artifacts: Make,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_models(tmp_path, state, make_artifacts(sample_type=sample_type), ORIGIN)
    np.savez(tmp_path / "x.npz", x=x)
    if wanted is None:
        assert len(predict(capsys, tmp_path / "model.onnx", tmp_path / "x.npz")) == 3
    else:
        assert wanted in refused(capsys, tmp_path / "model.onnx", tmp_path / "x.npz")


def test_an_image_is_refused_by_a_model_of_sound(
    tmp_path: Path, state: State, make_artifacts: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    write_models(tmp_path, state, make_artifacts(sample_type="int16"), ORIGIN)
    Image.fromarray(picture(0)).save(tmp_path / "a.png")
    assert "trained on int16 samples" in refused(capsys, tmp_path / "model.onnx", tmp_path / "a.png")


def test_without_pillow_an_image_of_the_right_size_is_read_and_another_is_refused(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.fromarray(picture(1)).save(tmp_path / "right.ppm")
    Image.fromarray(picture(1, scale=2)).save(tmp_path / "large.ppm")
    Image.fromarray(picture(1)).save(tmp_path / "right.png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert "shoe 100.0%" in predict(capsys, run_dir / "model.onnx", tmp_path / "right.ppm")[1]
    error = refused(capsys, run_dir / "model.onnx", tmp_path / "large.ppm")
    assert "has 10x8 pixels and the model takes 5x4" in error
    assert "pip install pillow" in error
    assert "needs Pillow" in refused(capsys, run_dir / "model.onnx", tmp_path / "right.png")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.png", None, "is not a file"),
        ("text.txt", b"x", "has an unknown file type; allowed are .npz, .ppm"),
        ("broken.png", b"\x89PNG\r\n\x1a\n" + b"\0" * 40, "cannot be read as an image"),
        ("broken.npz", b"PK\x03\x04", "cannot be read as an .npz"),
        ("huge.ppm", b"P6 " + b"9" * 5000 + b" 1 255 x", "is not a binary PPM"),
        ("empty.ppm", b"P6 0 0 255 ", "has 0x0 pixels"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_a_sentence(
    name: str, content: bytes | None, message: str, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert message in refused(capsys, run_dir / "model.onnx", tmp_path / name)


def test_a_folder_and_an_npz_without_samples_are_refused(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "is a folder; name the files in it" in refused(capsys, run_dir / "model.onnx", tmp_path)
    np.savez(tmp_path / "none.npz", images=np.zeros(3))
    error = refused(capsys, run_dir / "model.onnx", tmp_path / "none.npz")
    assert "has none of the arrays x_test, x, x_train" in error
