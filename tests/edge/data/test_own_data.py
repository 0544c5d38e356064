"""A user's own data and sound: folders of images, entry points, Speech Commands."""

from __future__ import annotations

import os
import re
import shutil
import sys
import wave
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from sparsyedge.edge.data import Dataset, Samples, check_classes, load
from sparsyedge.edge.data.loaders import load_speech
from sparsyedge.edge.data.speech import SPEECH_ARCHIVE, log_mel, resample_to_8k
from sparsyedge.edge.errors import DataError
from sparsyedge.edge.installation import install_command

# Taken before the fixture below hides it.
REAL_DATA = os.environ.get("SPARSYEDGE_DATA", "")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home without a cache, and no data folder in the environment."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SPARSYEDGE_DATA", raising=False)


# ---- folders of images -----------------------------------------------------------------------------------------------


def write_ppm(path: Path, shade: int, *, width: int = 6, height: int = 4) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"P6\n# a comment\n%d %d\n255\n" % (width, height) + bytes([shade, 0, 255]) * (width * height))


def write_folders(root: Path) -> Path:
    for part in ("train", "test"):
        for label, name in enumerate(("apple", "pear")):
            for number in range(2):
                write_ppm(root / part / name / f"{number}.ppm", 10 * label + number)
    return root


def test_images_are_read_from_a_folder_per_class(tmp_path: Path) -> None:
    dataset = load(str(write_folders(tmp_path / "fruit")))
    assert (dataset.classes, dataset.train.x.shape) == (2, (4, 3, 4, 6))
    assert dataset.train.y.tolist() == [0, 0, 1, 1]
    assert dataset.train.x[:, 0, 0, 0].tolist() == [0, 1, 10, 11]
    assert dataset.train.x[0, 2].min() == 255


def test_a_folder_of_images_is_found_below_the_data_folder(tmp_path: Path) -> None:
    write_folders(tmp_path / "data" / "fruit")
    assert len(load("fruit", tmp_path / "data").test) == 4


def test_images_of_two_sizes_are_refused_by_name(tmp_path: Path) -> None:
    write_ppm(write_folders(tmp_path / "fruit") / "train" / "pear" / "9.ppm", 1, width=5)
    with pytest.raises(DataError, match=r"pear/9\.ppm has shape .* \(3, 4, 5\), .*0\.ppm has \(3, 4, 6\)"):
        load(str(tmp_path / "fruit"))


def test_a_class_that_only_the_test_part_has_is_refused(tmp_path: Path) -> None:
    write_ppm(write_folders(tmp_path / "fruit") / "test" / "plum" / "0.ppm", 1)
    with pytest.raises(DataError, match=r"class 'plum' .*allowed are apple, pear"):
        load(str(tmp_path / "fruit"))


def test_a_class_without_images_is_refused_where_data_is_dealt_out(tmp_path: Path) -> None:
    (write_folders(tmp_path / "fruit") / "train" / "plum").mkdir()
    dataset = load(str(tmp_path / "fruit"))
    with pytest.raises(DataError, match=r"class 2 of data set .* has no sample in the train part; .* 0\.\.2 needs"):
        check_classes(dataset)


def test_labels_that_are_far_apart_are_refused_without_memory_for_all_between() -> None:
    labels = np.array([0, 1, 10**15], dtype=np.int64)
    samples = Samples(np.zeros((3, 1, 8, 8), dtype=np.float32), labels)
    with pytest.raises(DataError, match="class 2 of data set far has no sample in the train part"):
        check_classes(Dataset("far", samples, samples, classes=10**15 + 1))


@pytest.mark.parametrize("content", [b"", b"P6\n4 4\n65535\n", b"P6\n6 4\n255\n\x00", b"GIF89a"])
def test_a_damaged_image_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (write_folders(tmp_path / "fruit") / "train" / "apple" / "0.ppm").write_bytes(content)
    with pytest.raises(DataError, match=r"apple/0\.ppm"):
        load(str(tmp_path / "fruit"))


def test_classes_are_called_as_their_folders(tmp_path: Path) -> None:
    assert load(str(write_folders(tmp_path / "fruit"))).names == ("apple", "pear")


def test_a_device_trains_on_folders_without_a_test_part(tmp_path: Path) -> None:
    folder = write_folders(tmp_path / "fruit")
    shutil.rmtree(folder / "test")
    for place in (folder, folder / "train"):
        dataset = load(str(place), train_only=True)
        assert (dataset.names, len(dataset.train), len(dataset.test)) == (("apple", "pear"), 4, 0)
        with pytest.raises(DataError, match=r"test part of data set .* is empty, .*test/CLASS/"):
            load(str(place))


def test_what_a_file_manager_hides_is_no_class_and_no_image(tmp_path: Path) -> None:
    folder = write_folders(tmp_path / "fruit") / "train"
    write_ppm(folder / ".thumbnails" / "0.ppm", 1)
    (folder / "pear" / "._0.ppm").write_bytes(b"what macOS leaves behind")
    assert load(str(folder.parent)).names == ("apple", "pear")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("train/0.ppm", r"has train/, which holds a part of the data, beside pear/, .*move the folders of classes"),
        ("test/apple/0.ppm", r"has test/, which holds a part of the data, beside pear/"),
    ],
)
def test_folders_that_can_be_read_in_two_ways_are_refused(tmp_path: Path, path: str, message: str) -> None:
    write_ppm(tmp_path / "fruit" / path, 1)
    write_ppm(tmp_path / "fruit" / "pear" / "0.ppm", 1)
    with pytest.raises(DataError, match=message):
        load(str(tmp_path / "fruit"), train_only=True)


def test_a_folder_without_a_train_part_is_refused(tmp_path: Path) -> None:
    folder = write_folders(tmp_path / "fruit")
    shutil.rmtree(folder / "train")
    with pytest.raises(DataError, match=r"has test/ and no train/; move"):
        load(str(folder), train_only=True)


def test_a_folder_without_images_is_told_what_belongs_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is a folder without images; expected train/CLASS/ and test/CLASS/"):
        load(str(tmp_path))


def test_images_that_need_pillow_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (write_folders(tmp_path / "fruit") / "train" / "apple" / "5.png").write_bytes(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match=re.escape(f"run `{install_command('images')}`")):
        load(str(tmp_path / "fruit"))


# ---- entry points ----------------------------------------------------------------------------------------------------


def toy(data_dir: Path | None) -> Dataset:
    samples = Samples(np.zeros((4, 1, 2, 2), dtype=np.uint8), np.array([0, 1, 0, 1]))
    return Dataset("toy", samples, samples, 2)


def broken(data_dir: Path | None) -> Dataset:
    raise RuntimeError("no such luck")


def wrong(data_dir: Path | None) -> object:
    return 3


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three data sets of other packages."""
    module = "toy_datasets"
    monkeypatch.setitem(sys.modules, module, sys.modules[__name__])
    points = metadata.EntryPoints(
        metadata.EntryPoint(name, f"{module}:{name}", "sparsyedge.datasets") for name in ("toy", "broken", "wrong")
    )
    monkeypatch.setattr(metadata, "entry_points", lambda **chosen: points.select(**chosen))


@pytest.mark.usefixtures("plugins")
def test_another_package_can_bring_a_data_set() -> None:
    assert load("toy").classes == 2


@pytest.mark.usefixtures("plugins")
def test_a_package_that_fails_is_named() -> None:
    with pytest.raises(DataError, match=r"data set broken of entry point toy_datasets:broken failed: .*no such luck"):
        load("broken")
    with pytest.raises(DataError, match="gave int; it must give a"):
        load("wrong")


@pytest.mark.usefixtures("plugins")
def test_an_unknown_name_is_told_all_that_are_known() -> None:
    with pytest.raises(DataError, match=r"known are digits, .*, broken, toy, wrong and \*\.npz files"):
        load("qqqqqq")


# ---- sound -----------------------------------------------------------------------------------------------------------


def write_wav(path: Path, sound: np.ndarray[tuple[int], np.dtype[np.int16]], *, rate: int = 16_000) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(sound.astype("<i2").tobytes())


def write_speech(root: Path) -> Path:
    """Two words of four clips: two to train, one for validation, one to test."""
    folder = root / "speech_commands_v0.02"
    for label, word in enumerate(("no", "yes")):
        for number in range(4):
            write_wav(folder / word / f"{number}.wav", np.full(12_000, 1000 * label + number, dtype=np.int16))
    write_wav(folder / "_background_noise_" / "hum.wav", np.zeros(16_000, dtype=np.int16))
    (folder / "validation_list.txt").write_text("no/2.wav\nyes/2.wav\n")
    (folder / "testing_list.txt").write_text("no/3.wav\nyes/3.wav\n")
    return root


def test_speech_follows_the_official_lists(tmp_path: Path) -> None:
    dataset = load("speech_commands", write_speech(tmp_path / "data"))
    assert (len(dataset.train), len(dataset.test), dataset.names) == (4, 2, ("no", "yes"))
    assert dataset.train.x.shape[1:] == (1, 1, 8000)
    assert dataset.train.y.tolist() == [0, 0, 1, 1]
    # The filter changes nothing in the middle of a constant clip; after its end there is silence.
    assert dataset.test.x[1, 0, 0, 3000] == 1003
    assert dataset.test.x[1, 0, 0, -1] == 0


def test_sound_is_scaled_when_a_batch_asks_for_it(tmp_path: Path) -> None:
    dataset = load("speech_commands", write_speech(tmp_path / "data"))
    x, _ = dataset.train.batch(np.array([2]))
    assert x.dtype == np.float32
    assert x[0, 0, 0, 3000] == np.float32(1000 / 32768)


def test_speech_of_another_rate_is_refused_by_name(tmp_path: Path) -> None:
    root = write_speech(tmp_path / "data")
    write_wav(root / "speech_commands_v0.02" / "no" / "7.wav", np.zeros(100, dtype=np.int16), rate=8000)
    with pytest.raises(DataError, match=r"no/7\.wav has \(channels, bytes, rate\) \(1, 2, 8000\)"):
        load("speech_commands", root)


def test_speech_without_data_and_network_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    # Nothing listens on port 1, so the test never downloads 2.4 GB if there is a network.
    archive = replace(SPEECH_ARCHIVE, url="http://127.0.0.1:1/speech.tar.gz")
    with pytest.raises(DataError) as caught:
        load_speech("speech_commands", tmp_path, archive=archive)
    message = str(caught.value)
    for part in (str(tmp_path), archive.url, "2,429 MB", "folder speech_commands_v0.02/", "speech_commands.npz"):
        assert part in message


def test_half_the_rate_keeps_what_it_can_carry_and_drops_the_rest() -> None:
    seconds = np.arange(16_000) / 16_000
    tones = {hertz: 8000 * np.sin(2 * np.pi * hertz * seconds) for hertz in (500, 3000, 6000)}
    halved = resample_to_8k(np.stack([tone.astype(np.int16) for tone in tones.values()]))
    middle = halved[:, 500:-500].astype(np.float64)
    levels = dict(zip(tones, middle.std(axis=1) / (8000 / np.sqrt(2)), strict=True))
    assert levels[500] == pytest.approx(1, abs=0.01)
    assert levels[3000] == pytest.approx(1, abs=0.05)
    assert levels[6000] < 0.01


def test_log_mel_shows_a_tone_in_its_band() -> None:
    seconds = np.arange(16_000) / 16_000
    low, high = (8000 * np.sin(2 * np.pi * hertz * seconds) for hertz in (300, 5000))
    spectrograms = log_mel(np.stack([low, high]).astype(np.int16))
    assert spectrograms.shape == (2, 1, 40, 98)
    loudest = spectrograms[:, 0, :, 50].argmax(axis=1)
    assert loudest[0] < 10 < 30 < loudest[1]
    assert np.isfinite(log_mel(np.zeros((1, 16_000), dtype=np.int16))).all()


@pytest.mark.skipif(
    not (Path(REAL_DATA) / "speech_small.npz").is_file(), reason="no speech_small.npz in $SPARSYEDGE_DATA"
)
def test_the_subset_of_speech_commands_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSYEDGE_DATA", REAL_DATA)
    dataset = load("speech_commands")
    assert (len(dataset.train), len(dataset.test), dataset.classes) == (1515, 344, 9)
