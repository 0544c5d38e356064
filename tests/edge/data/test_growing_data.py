"""Data that changes while a device runs: real folders and files, good, broken and half-written."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from sparsyedge.edge.data import Dataset, Samples
from sparsyedge.edge.data import growing_folder as growing_folder_module
from sparsyedge.edge.data.folder import read_image
from sparsyedge.edge.data.growing_plugin import PluginSource
from sparsyedge.edge.data.loaders import open_source
from sparsyedge.edge.data.source import DataSource, Found
from sparsyedge.edge.errors import DataError


def write_image(path: Path, shade: int, *, size: int = 4) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"P6\n%d %d\n255\n" % (size, size) + bytes([shade]) * (size * size * 3))


def write_arrays(path: Path, shades: list[int], *, test: list[int] | None = None, names: tuple[str, ...] = ()) -> None:
    parts = {"train": shades} | ({"test": test} if test is not None else {})
    arrays: dict[str, object] = {"names": names} if names else {}
    for part, values in parts.items():
        arrays[f"x_{part}"] = (
            np.full((len(values), 4, 4, 3), 0, np.uint8) + np.array(values, np.uint8)[:, None, None, None]
        )
        arrays[f"y_{part}"] = np.arange(len(values)) % 2
    new = path.with_suffix(".new.npz")
    np.savez(new, allow_pickle=False, **arrays)  # type: ignore[arg-type]
    new.rename(path)


def looked(source: DataSource) -> Found:
    found = source.look()
    assert found is not None, "nothing has changed"
    return found


def counts(found: Found) -> tuple[int, int, int, int]:
    return found.added, found.changed, found.removed, found.broken


def shades(found: Found) -> list[int]:
    assert found.train is not None
    return list(found.train.samples.x[:, 0, 0, 0])


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    for shade, name in enumerate(("apple/1.ppm", "apple/2.ppm", "pear/1.ppm")):
        write_image(folder / name, shade)
    return folder


# ---- folders of images -----------------------------------------------------------------------------------------------


def test_a_folder_that_stays_as_it_is_is_read_once(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(str(photos))
    assert counts(looked(source)) == (3, 0, 0, 0)
    monkeypatch.setattr(growing_folder_module, "read_image", None)
    assert source.look() is None


def test_only_new_and_changed_images_are_read_again(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(str(photos))
    read: list[str] = []
    looked(source)

    def noted(path: Path) -> object:
        read.append(path.name)
        return read_image(path)

    monkeypatch.setattr(growing_folder_module, "read_image", noted)
    write_image(photos / "apple" / "3.ppm", 7)
    write_image(photos / "pear" / "1.ppm", 9)
    (photos / "apple" / "1.ppm").unlink()
    found = looked(source)
    assert counts(found) == (1, 1, 1, 0)
    assert sorted(read) == ["1.ppm", "3.ppm"]
    assert shades(found) == [1, 7, 9]
    assert found.train is not None
    assert found.train.samples.y.tolist() == [0, 0, 1]


def test_a_broken_image_is_skipped_by_name_and_taken_once_it_is_whole(photos: Path) -> None:
    source = open_source(str(photos))
    looked(source)
    (photos / "pear" / "half.ppm").write_bytes(b"P6\n4 4\n255\n\0\0")
    found = looked(source)
    assert counts(found) == (0, 0, 0, 1)
    assert found.trouble == f"{photos}/pear/half.ppm ends after 2 of 48 bytes; replace it"
    assert source.look() is None, "nothing new is wrong"
    write_image(photos / "pear" / "half.ppm", 5)
    assert counts(looked(source)) == (1, 0, 0, 0)


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".ppm"])
def test_rubbish_under_the_name_of_an_image_is_broken(photos: Path, suffix: str) -> None:
    (photos / "apple" / f"rubbish{suffix}").write_bytes(os.urandom(100))
    found = looked(open_source(str(photos)))
    assert counts(found) == (3, 0, 0, 1)
    assert f"rubbish{suffix}" in found.trouble


def test_an_image_of_another_size_is_broken_whichever_came_first(photos: Path) -> None:
    write_image(photos / "apple" / "0.ppm", 9, size=8)
    source = open_source(str(photos))
    found = looked(source)
    assert counts(found) == (3, 0, 0, 1)
    assert found.trouble.endswith("0.ppm has shape (channels, height, width) (3, 8, 8), the others have (3, 4, 4)")
    for number in range(5, 15):
        write_image(photos / "apple" / f"{number}.ppm", 9, size=8)
    assert counts(looked(source)) == (0, 0, 0, 11), "the images from before set the size"


def test_a_pipe_or_folder_under_the_name_of_an_image_is_broken_and_does_not_block(photos: Path) -> None:
    os.mkfifo(photos / "apple" / "pipe.ppm")
    (photos / "apple" / "folder.png").mkdir()
    (photos / "apple" / "nowhere.ppm").symlink_to(photos / "gone.ppm")
    found = looked(open_source(str(photos)))
    assert counts(found) == (3, 0, 0, 2)
    assert found.trouble.endswith("folder.png is not a file")


def test_a_long_and_unprintable_name_is_cut_and_made_printable(photos: Path) -> None:
    (photos / "apple" / ("x" * 120 + "\x1b[31m\n" + "y" * 100 + ".ppm")).write_bytes(b"P6")
    trouble = looked(open_source(str(photos))).trouble
    assert len(trouble) <= 200
    assert trouble.isprintable()


def test_a_folder_without_images_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    source = open_source(str(tmp_path / "photos"))
    first = looked(source)
    assert first.train is None
    assert "holds no images yet" in first.trouble
    write_image(tmp_path / "photos" / "apple" / "1.ppm", 1)
    assert counts(looked(source)) == (1, 0, 0, 0)


def test_a_folder_that_is_emptied_or_gone_does_not_stop_the_device(photos: Path) -> None:
    source = open_source(str(photos))
    looked(source)
    moved = photos.rename(photos.with_name("moved"))
    gone = looked(source)
    assert gone.train is not None, "the images from before stay"
    assert "cannot be read: No such file or directory" in gone.trouble
    assert source.look() is None
    moved.rename(photos)
    assert counts(looked(source)) == (0, 0, 0, 0)
    for image in photos.glob("*/*"):
        image.unlink()
    assert looked(source).train is None


def test_images_to_evaluate_on_are_read_when_asked_for_and_their_change_is_noticed(
    photos: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    photos.rename(folder / "train")
    source = open_source(str(folder))
    assert not looked(source).has_test
    write_image(folder / "test" / "pear" / "1.ppm", 100)
    found = looked(source)
    assert found.has_test
    assert not found.has_changes
    test = found.test()
    assert test is not None
    assert (test.names, len(test.samples)) == (("pear",), 1)


# ---- an .npz file ----------------------------------------------------------------------------------------------------


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    write_arrays(tmp_path / "mine.npz", [1, 2, 3, 4])
    return tmp_path / "mine.npz"


def test_samples_of_a_file_are_counted_by_their_content(arrays: Path) -> None:
    source = open_source(str(arrays))
    assert counts(looked(source)) == (4, 0, 0, 0)
    assert source.look() is None
    write_arrays(arrays, [1, 2, 3, 4, 5, 6])
    assert counts(looked(source)) == (2, 0, 0, 0)
    write_arrays(arrays, [1, 2, 9, 4])
    assert counts(looked(source)) == (1, 0, 3, 0)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_half_written_file_keeps_the_samples_from_before(arrays: Path, share: float) -> None:
    source = open_source(str(arrays))
    before = shades(looked(source))
    write_arrays(arrays, [7, 8])
    whole = arrays.read_bytes()
    arrays.write_bytes(whole[: int(share * len(whole))])
    found = looked(source)
    assert shades(found) == before
    assert found.trouble.endswith("; the samples from before stay")
    assert source.look() is None
    arrays.write_bytes(whole)
    assert shades(looked(source)) == [7, 8]


def test_a_file_that_is_half_written_when_the_device_starts_is_waited_for(arrays: Path) -> None:
    whole = arrays.read_bytes()
    arrays.write_bytes(whole[:100])
    source = open_source(str(arrays))
    first = looked(source)
    assert first.train is None
    assert "cannot be read as an .npz" in first.trouble
    arrays.write_bytes(whole)
    assert counts(looked(source)) == (4, 0, 0, 0)


def test_a_whole_file_that_is_no_use_stops_the_device_at_its_start_but_not_later(arrays: Path, tmp_path: Path) -> None:
    source = open_source(str(arrays))
    looked(source)
    np.savez(tmp_path / "useless.npz", x_train=np.zeros((2, 4, 4, 3)), y_train=np.zeros(2, np.int64))
    (tmp_path / "useless.npz").rename(arrays)
    assert "is float64" in looked(source).trouble
    with pytest.raises(DataError, match="is float64"):
        open_source(str(arrays)).look()


def test_a_file_that_is_gone_keeps_the_samples_and_comes_back(arrays: Path) -> None:
    source = open_source(str(arrays))
    looked(source)
    moved = arrays.rename(arrays.with_name("moved.npz"))
    assert shades(looked(source)) == [1, 2, 3, 4]
    moved.rename(arrays)
    assert counts(looked(source)) == (0, 0, 0, 0)


def test_the_test_part_of_a_file_is_read_when_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    write_arrays(path, [1, 2, 3], test=[4, 5], names=("apple", "pear"))
    found = looked(open_source(str(path)))
    assert found.has_test
    test = found.test()
    assert test is not None
    assert (test.names, test.samples.x[:, 0, 0, 0].tolist()) == (("apple", "pear"), [4, 5])


# ---- data of another package -----------------------------------------------------------------------------------------


class Camera:
    """A data set that says how many samples are new."""

    def __init__(self) -> None:
        self.shades, self.new, self.reads = [1, 2], 0, 0
        self.fails: Callable[[], object] = lambda: None

    def __call__(self, data_dir: Path | None) -> Dataset:
        self.reads += 1
        x = np.zeros((len(self.shades), 3, 4, 4), np.uint8) + np.array(self.shades, np.uint8)[:, None, None, None]
        samples = Samples(x, np.arange(len(self.shades)) % 2)
        return Dataset("camera", samples, samples.none(), 2)

    def new_samples(self, data_dir: Path | None) -> int:
        self.fails()
        return self.new


@pytest.fixture
def camera(monkeypatch: pytest.MonkeyPatch) -> Camera:
    camera = Camera()
    monkeypatch.setattr(metadata.EntryPoint, "load", lambda self: camera)
    return camera


def source_of(camera: Camera) -> PluginSource:
    return PluginSource(metadata.EntryPoint("camera", "module:camera", "sparsyedge.datasets"), None)


def test_a_data_set_of_another_package_is_read_again_when_it_says_that_it_has_new_samples(camera: Camera) -> None:
    source = source_of(camera)
    looked(source)
    assert source.look() is None
    camera.shades, camera.new = [1, 2, 3, 4, 5], 3
    assert counts(looked(source)) == (3, 0, 0, 0)
    assert camera.reads == 2


def test_a_data_set_of_another_package_that_fails_later_stops_nobody(camera: Camera) -> None:
    source = source_of(camera)
    looked(source)
    camera.fails = lambda: 1 / 0
    found = looked(source)
    assert shades(found) == [1, 2]
    assert "ZeroDivisionError" in found.trouble
    assert source.look() is None
