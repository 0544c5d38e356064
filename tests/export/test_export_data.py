"""What data an export is for: taken from the data, said, and refused where it cannot be meant."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sparsyedge.edge.data import DATASETS, Form
from sparsyedge.edge.errors import ConfigError, DataError, SparsyedgeError
from sparsyedge.edge.model.artifacts import Artifacts, Manifest
from sparsyedge.export.command import main
from sparsyedge.export.data_form import understand

pytestmark = pytest.mark.heavy

CLOTHES = ["tshirt", "trouser", "pullover"]


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """Grey images of three classes with names, without a test part."""
    path = tmp_path / "mine.npz"
    x = np.arange(6 * 16 * 16, dtype=np.uint32).astype(np.uint8).reshape(6, 16, 16)
    np.savez(path, x_train=x, y_train=np.arange(6) % 3, names=CLOTHES)
    return path


def export(*arguments: str, out: Path) -> Manifest:
    assert main([*arguments, "--width", "4", "--out", str(out)]) == 0
    return Artifacts.load(out).manifest


def test_shape_classes_and_names_come_from_an_npz_and_are_said(
    mine: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    manifest = export("--dataset", str(mine), out=tmp_path / "out")
    assert (manifest.input_shape, manifest.classes, manifest.sample_type) == ((1, 16, 16), 3, "uint8")
    assert manifest.class_names == tuple(CLOTHES)
    said = capfd.readouterr().out
    assert said.startswith(
        "input    1 x 16 x 16 (channels, height, width)\n"
        "samples  uint8, pixels of 0..255\n"
        "classes  3: tshirt, trouser, pullover\n"
    )
    assert max(map(len, said.splitlines()[:3])) <= 80


def test_names_come_from_folders(tmp_path: Path) -> None:
    for name in CLOTHES:
        (tmp_path / "clothes" / name).mkdir(parents=True)
        (tmp_path / "clothes" / name / "0.pgm").write_bytes(b"P5\n16 16\n255\n" + bytes(256))
    form, _ = understand("clothes", tmp_path)
    assert form == Form((1, 16, 16), 3, tuple(sorted(CLOTHES)))


def test_a_well_known_data_set_need_not_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SPARSYEDGE_DATA", raising=False)
    for name, known in DATASETS.items():
        assert understand(name)[0] == known.form


def test_float_data_is_said_to_be_used_as_it_is(tmp_path: Path) -> None:
    x = np.linspace(0, 1, 4 * 256, dtype=np.float32).reshape(4, 1, 16, 16)
    np.savez(tmp_path / "unit.npz", x_train=x, y_train=[0, 1, 0, 1])
    form, said = understand(str(tmp_path / "unit.npz"))
    assert form == Form((1, 16, 16), 2, (), "float32")
    assert said[1:] == [
        "samples  float32, normalised already and used as they are: 0 to 1",
        "classes  2, without names",
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], r"name it with --dataset .*, or give both --input-shape CHANNELS HEIGHT WIDTH and --classes"),
        (["--classes", "10"], "give both"),
        (["--input-shape", "1", "28", "28"], "give both"),
        (
            ["--classes", "10", "--input-shape", "28", "28", "1"],
            "means 28 channels of 28 x 1 pixels, .*write --input-shape 1 28 28",
        ),
        (["--dataset", "cifar10", "--classes", "11"], "--classes 11 contradicts data set cifar10, which has 10"),
        (
            ["--dataset", "MINE", "--input-shape", "16", "16", "1"],
            r"16 16 1 contradicts .*, which has 1 16 16",
        ),
        (["--dataset", "MINE", "--sample-type", "float32"], r"float32 contradicts data set .*, which has uint8"),
        (["--dataset", "cifar-10"], "did you mean cifar10"),
        (["--classes", "4", "--outputs", "2"], "--classes 4 and --outputs 2 exclude each other"),
        (
            ["--classes", "4", "--input-shape", "1", "2", "3", "4", "5"],
            "has 5 sizes, allowed are 1 to 4: FEATURES;",
        ),
        (["--classes", "4", "--input-shape", "10", "--sample-type", "uint8"], "--sample-type uint8 is for images"),
        (["--dataset", "digits", "--outputs", "1"], "--outputs 1 contradicts data set digits, which has 10"),
        (
            ["--classes", "4", "--input-shape", "3", "128", "--model", "resnet18"],
            r"resnet18 takes images .*samples of shape \(3, 128\) \(channels, length\); choose another --model",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(flags: list[str], message: str, mine: Path, tmp_path: Path) -> None:
    named = [str(mine) if flag == "MINE" else flag for flag in flags]
    with pytest.raises(SparsyedgeError, match=message):
        main([*named, "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_flags_may_say_again_what_the_data_says(mine: Path) -> None:
    assert understand(str(mine), input_shape=(1, 16, 16), classes=3, sample_type="uint8")[0].names == tuple(CLOTHES)


def test_many_channels_are_possible_for_data_that_is_no_images() -> None:
    form, _ = understand(None, input_shape=(28, 28, 1), classes=10, sample_type="float32")
    assert form == Form((28, 28, 1), 10, (), "float32")


@pytest.mark.parametrize("shape", [(10,), (3, 128), (1, 8, 8, 8)])
def test_samples_that_are_no_images_are_floats_unless_they_are_said_to_be_others(shape: tuple[int, ...]) -> None:
    form, said = understand(None, input_shape=shape, classes=4)
    assert form == Form(shape, 4, (), "float32")
    assert said[0].startswith(f"input    {' x '.join(map(str, shape))} (")


def test_outputs_instead_of_classes_make_a_regression(tmp_path: Path) -> None:
    form, said = understand(None, input_shape=(10,), outputs=2)
    assert form == Form((10,), 2, (), "float32", "regression")
    assert said[2:] == ["outputs  2, without names", "targets  float32, a regression, used as they are"]
    x = np.zeros((4, 10), dtype=np.float32)
    np.savez(tmp_path / "own.npz", x_train=x, y_train=np.zeros((4, 2), dtype=np.float32))
    assert understand(str(tmp_path / "own.npz"), outputs=2)[0] == form
    with pytest.raises(ConfigError, match=r"--classes 2 contradicts .*, which has a regression with 2 outputs; leave"):
        understand(str(tmp_path / "own.npz"), classes=2)


def test_data_that_cannot_be_used_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    x = np.full((4, 1, 16, 16), 255, dtype=np.float32)
    np.savez(tmp_path / "raw.npz", x_train=x, y_train=[0, 1, 0, 1])
    with pytest.raises(DataError, match="looks like pixels"):
        main(["--dataset", str(tmp_path / "raw.npz"), "--out", str(tmp_path / "out")])


def test_one_class_is_not_enough_to_export(tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", x_train=np.zeros((4, 16, 16), dtype=np.uint8), y_train=[0] * 4)
    with pytest.raises(ConfigError, match="classes at least 2"):
        main(["--dataset", str(tmp_path / "one.npz"), "--out", str(tmp_path / "out")])


# What a stock onnxruntime lacks, which is all that there is for Python 3.12.
STOCK = (
    "import sys; sys.modules['onnxruntime.training'] = None\n"
    "from sparsyedge.edge.cli import main; sys.exit(main(sys.argv[1:]))"
)


def test_a_python_without_the_training_runtime_exports_what_any_onnxruntime_trains(tmp_path: Path) -> None:
    command = ("export", "--classes", "5", "--input-shape", "3", "16", "16", "--width", "4", "--out", "out")
    done = subprocess.run(
        [sys.executable, "-c", STOCK, *command], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "plain graph agrees with torch over 3 teacher-forced steps" in done.stdout
    assert "no files for onnxruntime-training's API: devices train the plain graph" in done.stdout
    manifest = Artifacts.load(tmp_path / "out").manifest
    assert (manifest.version, manifest.has_api_files) == (6, False)
    assert {"onnx", "torch"} <= set(manifest.made_with)
