"""What the table of the vision transformer needs before a run: half of CIFAR-10, weights, birds; and its plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file

from sparsyedge.benchmarks.paper import birds, command, starts
from sparsyedge.benchmarks.paper.results import figures, run_config, run_setting
from sparsyedge.benchmarks.paper.settings import Pretraining, Setting
from sparsyedge.coordinator.record.observer import SilentObserver
from sparsyedge.edge.data import load
from sparsyedge.edge.errors import ConfigError, DataError
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.checkpoint import read_initial_state
from sparsyedge.edge.model.methods import MethodConfig
from sparsyedge.edge.model.training import TrainingConfig

TINY = Setting(
    dataset="cifar10_second",
    model="vit_tiny-4",
    method=MethodConfig(name="sparsyfed", sparsity=0.5),
    alpha=1000.0,
    devices=4,
    cohort=2,
    rounds=2,
    width=2,
    learning_rate=0.01,
    last_learning_rate=0.001,
    eval_every=1,
    seed=1,
    training=TrainingConfig(optimizer="adamw", clip_norm=1.0),
    pretraining=Pretraining(dataset="cifar10_first", epochs=1, batch_size=8, learning_rate=1e-3, seed=3),
)
SIDE = 8


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder with a CIFAR-10 of few small images; the first pixel of each is its class."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for part, count in (("train", 40), ("test", 20)):
        labels = np.arange(count) % 10
        pixels = rng.integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8)
        pixels[:, 0, 0, 0] = labels
        arrays |= {f"x_{part}": pixels, f"y_{part}": labels}
    folder = tmp_path / "data"
    folder.mkdir()
    np.savez(folder / "cifar10.npz", **arrays)
    return folder


def test_halves_share_no_class_and_keep_their_names(images: Path, tmp_path: Path) -> None:
    without = msgspec.structs.replace(TINY, pretraining=None)
    first = msgspec.structs.replace(without, dataset="cifar10_first")
    for setting in (first, without):
        assert starts.prepare(setting, tmp_path, data_dir=str(images)) is None
    halves = [load(starts.dataset_for(each.dataset, tmp_path)) for each in (first, without)]
    assert halves[0].names == ("airplane", "automobile", "bird", "cat", "deer")
    assert halves[1].names == ("dog", "frog", "horse", "ship", "truck")
    for half, start in zip(halves, (0, 5), strict=True):
        for samples in (half.train, half.test):
            assert np.array_equal(samples.x[:, 0, 0, 0], samples.y + start)
    assert (len(halves[1].train), len(halves[1].test)) == (20, 10)


@pytest.mark.heavy
def test_weights_are_pretrained_once_and_lack_the_last_layer(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = starts.prepare(TINY, tmp_path, data_dir=str(images))
    assert facts is not None
    assert facts["classes"] == ["airplane", "automobile", "bird", "cat", "deer"]
    path = starts.init_for(TINY, tmp_path, data_dir=None)
    assert path is not None
    names = set(load_file(path))
    assert {"patch_embed.proj.weight", "blocks.3.mlp.fc2.bias", "norm.weight"} <= names
    assert not {name for name in names if name.startswith("head.")}
    before = path.read_bytes()
    monkeypatch.delenv("SPARSYEDGE_DATA", raising=False)
    assert starts.prepare(TINY, tmp_path, data_dir=None) == facts
    path.unlink()
    # The same bits again: runs elsewhere begin where these did.
    starts.prepare(TINY, tmp_path, data_dir=str(images))
    assert path.read_bytes() == before


@pytest.mark.heavy
def test_a_run_begins_with_the_pretrained_weights_and_has_losses_and_sparsity_over_rounds(
    images: Path, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    result = run_setting(TINY, results, data_dir=str(images), workers=1, observer=SilentObserver())
    assert result["start"]["test"] == 10
    assert result["data"]["train"] == 20
    for record in result["rounds"]:
        assert record["loss_devices"] > 0
        assert record["test_loss"] > 0
    assert result["rounds"][-1]["sparsity_prunable"] == pytest.approx(0.5, abs=0.05)
    artifacts = Artifacts.load(run_config(TINY, results / "runs", data_dir=None).artifacts_path)
    path = starts.init_for(TINY, results / "runs", data_dir=None)
    assert path is not None
    weights = read_initial_state(artifacts)["blocks.0.attn.qkv.weight"]
    theta = np.sign(weights) * np.abs(weights) ** 1.25
    assert np.allclose(theta, load_file(path)["blocks.0.attn.qkv.weight"], atol=1e-6)


def test_absent_birds_are_refused_with_where_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSYEDGE_DATA", str(tmp_path))
    arguments = ["vit", "--scale", "full", "--seeds", "1", "--results", str(tmp_path / "results")]
    with pytest.raises(DataError, match=r"CUB_200_2011\.tgz .*benchmarks\.paper\.birds .*train/CLASS and test/CLASS"):
        command.main(arguments)
    (tmp_path / "cub200" / "train").mkdir(parents=True)
    with pytest.raises(DataError, match=r"there is no vit_base\.safetensors, .*vit_base_patch16_224"):
        command.main(arguments)


def test_birds_become_a_folder_of_images_of_one_size(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    unpacked = tmp_path / "CUB_200_2011"
    names = ["001.Albatross/a.jpg", "001.Albatross/b.jpg", "002.Wren/c.jpg", "002.Wren/d.jpg"]
    for number, name in enumerate(names):
        (unpacked / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        image.new("L" if number == 1 else "RGB", (20 + number, 30)).save(unpacked / "images" / name)
    lines = [f"{number} {name}" for number, name in enumerate(names, start=1)]
    (unpacked / "images.txt").write_text("\n".join(lines) + "\n")
    (unpacked / "train_test_split.txt").write_text("1 1\n2 0\n3 1\n4 0\n")
    assert birds.lay_out(unpacked, tmp_path / "cub200", side=16) == 4
    dataset = load(str(tmp_path / "cub200"))
    assert dataset.names == ("001.Albatross", "002.Wren")
    assert dataset.train.x.shape == dataset.test.x.shape == (2, 3, 16, 16)


def test_another_folder_than_the_archives_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is not the folder CUB_200_2011 .*images\.txt"):
        birds.lay_out(tmp_path, tmp_path / "out")


def some_result(setting: Setting, *arguments: object, **options: object) -> dict[str, Any]:
    rounds = [
        {
            "round": number,
            "test_accuracy": 0.5,
            "global_sparsity": 0.5,
            "updates": 2,
            "nonzeros_down": 20,
            "nonzeros_up": 20,
            "bytes_down": 40,
            "bytes_up": 40,
            "dense_bytes": 400,
            "loss_devices": 1 / number,
            "test_loss": 2 / number,
            "sparsity_prunable": 0.5,
        }
        for number in (1, 2, 3)
    ]
    return {"setting": msgspec.to_builtins(setting), "figures": figures(rounds), "rounds": rounds}


def test_losses_and_sparsity_are_drawn_for_each_group_of_rows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "run_setting", some_result)
    arguments = ["vit", "--results", str(tmp_path), "--only", "1 epoch", "--plot"]
    assert command.main([*arguments, str(tmp_path / "vit.svg")]) == 0
    assert (tmp_path / "vit.svg").read_bytes().startswith(b"<?xml")
    # Of the last round.
    assert "0.67" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"must end in \.png or \.svg"):
        command.main([*arguments, str(tmp_path / "vit.pdf")])
