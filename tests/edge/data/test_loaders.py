from __future__ import annotations

import hashlib
import logging
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from sparsyedge.edge.data import DATASETS, Form, form_of, load
from sparsyedge.edge.data.cifar import CIFAR10, CIFAR100, CifarVersion
from sparsyedge.edge.errors import DataError
from sparsyedge.edge.installation import install_command

# Taken before the fixture below hides it.
REAL_DATA = os.environ.get("SPARSYEDGE_DATA", "")
DIGITS_TEST_SHA256 = "9e8e2a79fdf1e21e90e944b94a7cf8dd4c4b2a19afc15dd4d5f580456c471c0c"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without a cache, no data folder in the environment, and a network that answers nothing."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SPARSYEDGE_DATA", raising=False)

    def no_network(url: str, timeout: float) -> object:
        raise OSError("no network in this test")

    monkeypatch.setattr("urllib.request.urlopen", no_network)
    return tmp_path / "home"


def write_binary(folder: Path, version: CifarVersion, records_per_file: int = 4) -> None:
    """Files in the official layout whose pixels count up and whose labels are 0, 1, 2, ... over all files."""
    folder.mkdir(parents=True)
    label = 0
    for file in version.train_files + version.test_files:
        records = np.zeros((records_per_file, version.label_bytes + 3072), dtype=np.uint8)
        records[:, version.label_bytes :] = np.arange(3072) % 251
        for record in records:
            record[0] = 77  # the coarse label of CIFAR-100, which is not the class
            record[version.label_bytes - 1] = label % version.form.classes
            label += 1
        records.tofile(folder / file)


def write_npz(path: Path, **changes: object) -> None:
    rng = np.random.default_rng(3)
    arrays: dict[str, object] = {
        "x_train": rng.integers(0, 256, size=(6, 5, 7, 3), dtype=np.uint8),
        "y_train": np.array([0, 1, 2, 0, 1, 2], dtype=np.uint8),
        "x_test": rng.integers(0, 256, size=(2, 5, 7, 3), dtype=np.uint8),
        "y_test": np.array([0, 2], dtype=np.uint8),
    }
    arrays.update(changes)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})  # type: ignore[arg-type]


def test_digits_are_enlarged_and_split_the_same_way_every_time() -> None:
    dataset = load("digits")
    assert (len(dataset.train), len(dataset.test), dataset.classes) == (1437, 360, 10)
    assert dataset.train.x.shape[1:] == (3, 32, 32)
    assert dataset.train.x.dtype == np.uint8
    assert (dataset.train.x.min(), dataset.train.x.max()) == (0, 255)
    assert hashlib.sha256(dataset.test.x.tobytes() + dataset.test.y.tobytes()).hexdigest() == DIGITS_TEST_SHA256


def test_digits_have_every_class_in_proportion_in_the_test_part() -> None:
    dataset = load("digits")
    train, test = np.bincount(dataset.train.y), np.bincount(dataset.test.y)
    np.testing.assert_allclose(test, (train + test) * 360 / 1797, atol=1)


def test_digits_repeat_each_cell_four_times_in_three_equal_channels() -> None:
    x = load("digits").train.x
    np.testing.assert_array_equal(x[:, 0], x[:, 2])
    np.testing.assert_array_equal(x[:, 0], x[:, 0, ::4, ::4].repeat(4, axis=1).repeat(4, axis=2))


def test_digits_without_scikit_learn_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match=re.escape(f"run `{install_command('demo')}`")):
        load("digits")


def test_cifar10_binary_files_are_read_in_order(tmp_path: Path) -> None:
    write_binary(tmp_path / "cifar-10-batches-bin", CIFAR10)
    dataset = load("cifar10", tmp_path)
    assert dataset.train.y.tolist() == [each % 10 for each in range(20)]
    assert dataset.test.y.tolist() == [0, 1, 2, 3]
    assert dataset.train.x.shape == (20, 3, 32, 32)
    np.testing.assert_array_equal(dataset.train.x[7].ravel(), np.arange(3072) % 251)


def test_cifar100_takes_the_fine_label(tmp_path: Path) -> None:
    write_binary(tmp_path / "cifar-100-binary", CIFAR100)
    dataset = load("cifar100", tmp_path)
    assert (dataset.train.y.tolist(), dataset.test.y.tolist()) == ([0, 1, 2, 3], [4, 5, 6, 7])
    assert dataset.classes == 100


def test_data_dir_may_be_the_unpacked_folder_itself(tmp_path: Path) -> None:
    write_binary(tmp_path / "anything", CIFAR10)
    assert len(load("cifar10", tmp_path / "anything").train) == 20


def test_a_cut_binary_file_is_refused_by_name_and_size(tmp_path: Path) -> None:
    write_binary(tmp_path / "cifar-10-batches-bin", CIFAR10)
    damaged = tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"data_batch_3\.bin has 12291 bytes.*3073"):
        load("cifar10", tmp_path)


def test_a_missing_binary_file_is_named(tmp_path: Path) -> None:
    write_binary(tmp_path / "cifar-10-batches-bin", CIFAR10)
    (tmp_path / "cifar-10-batches-bin" / "data_batch_4.bin").unlink()
    with pytest.raises(DataError, match=r"data_batch_4\.bin is missing"):
        load("cifar10", tmp_path)


def test_a_label_beyond_the_classes_is_refused(tmp_path: Path) -> None:
    write_binary(tmp_path / "cifar-10-batches-bin", CIFAR10)
    path = tmp_path / "cifar-10-batches-bin" / "test_batch.bin"
    path.write_bytes(b"\x0a" + path.read_bytes()[1:])
    with pytest.raises(DataError, match=r"label 10 of sample 0 in the test part.*0\.\.9"):
        load("cifar10", tmp_path)


def test_folders_are_searched_in_the_documented_order(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {}
    for size, folder in enumerate([tmp_path / "given", tmp_path / "environment", home / ".cache" / "sparsyedge"], 1):
        write_binary(folder / "cifar-10-batches-bin", CIFAR10, records_per_file=size)
        sizes[folder.name] = size
    assert len(load("cifar10").test) == sizes["sparsyedge"]
    monkeypatch.setenv("SPARSYEDGE_DATA", str(tmp_path / "environment"))
    assert len(load("cifar10").test) == sizes["environment"]
    assert len(load("cifar10", tmp_path / "given").test) == sizes["given"]


def test_cifar_may_be_one_npz(tmp_path: Path) -> None:
    write_npz(tmp_path / "cifar10.npz")
    assert load("cifar10", tmp_path).classes == 10


def test_a_subset_is_used_with_a_note_when_the_whole_is_nowhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_npz(tmp_path / "cifar10_small.npz")
    assert len(load("cifar10", tmp_path).train) == 6
    assert "using the subset" in caplog.text


def test_the_whole_in_a_later_folder_goes_before_a_subset(tmp_path: Path, home: Path) -> None:
    write_npz(tmp_path / "cifar10_small.npz")
    write_binary(home / ".cache" / "sparsyedge" / "cifar-10-batches-bin", CIFAR10)
    assert len(load("cifar10", tmp_path).train) == 20


def test_without_data_and_network_the_error_says_where_it_looked_and_what_to_put_there(
    tmp_path: Path, home: Path
) -> None:
    with pytest.raises(DataError) as caught:
        load("cifar100", tmp_path)
    message = str(caught.value)
    for part in (str(tmp_path), str(home / ".cache" / "sparsyedge"), CIFAR100.archive.url, "cifar-100-binary/"):
        assert part in message
    assert "cifar100.npz" in message


def test_own_uint8_images_become_channels_first(tmp_path: Path) -> None:
    write_npz(tmp_path / "own.npz")
    dataset = load(str(tmp_path / "own.npz"))
    with np.load(tmp_path / "own.npz") as stored:
        np.testing.assert_array_equal(dataset.train.x, stored["x_train"].transpose(0, 3, 1, 2))
    assert dataset.train.x.flags.c_contiguous
    assert dataset.classes == 3


def test_own_float_samples_are_taken_as_they_are(tmp_path: Path) -> None:
    x = np.linspace(-1, 1, 6 * 20, dtype=np.float32).reshape(6, 1, 4, 5)
    write_npz(tmp_path / "own.npz", x_train=x, x_test=x[:2])
    np.testing.assert_array_equal(load(str(tmp_path / "own.npz")).train.x, x)


def test_own_file_is_also_found_in_the_data_folder(tmp_path: Path) -> None:
    write_npz(tmp_path / "own.npz")
    assert load("own.npz", tmp_path).name == "own.npz"


def test_names_in_the_file_say_how_many_classes_there_are(tmp_path: Path) -> None:
    write_npz(tmp_path / "own.npz", names=np.array(["a", "b", "c", "never seen"]))
    dataset = load(str(tmp_path / "own.npz"))
    assert (dataset.classes, dataset.names) == (4, ("a", "b", "c", "never seen"))


def test_well_known_data_sets_are_named_with_and_without_their_data(tmp_path: Path) -> None:
    write_binary(tmp_path / "cifar-10-batches-bin", CIFAR10)
    write_binary(tmp_path / "cifar-100-binary", CIFAR100)
    for name, first in (("digits", "0"), ("cifar10", "airplane"), ("cifar100", "apple")):
        dataset = load(name, tmp_path)
        assert form_of(dataset) == DATASETS[name].form
        assert dataset.names[0] == first


def test_grey_images_need_no_axis_for_channels(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    grey = np.arange(6 * 5 * 7, dtype=np.uint8).reshape(6, 5, 7)
    write_npz(tmp_path / "own.npz", x_train=grey, x_test=grey[:2])
    np.testing.assert_array_equal(load(str(tmp_path / "own.npz")).train.x, grey[:, np.newaxis])
    assert "x_train" in caplog.text
    assert "taken as grey images of 5 x 7 pixels" in caplog.text


def test_many_channels_are_possible_where_they_are_no_pixels(tmp_path: Path) -> None:
    x = np.linspace(-1, 1, 6 * 28 * 28, dtype=np.float32).reshape(6, 28, 1, 28)
    write_npz(tmp_path / "own.npz", x_train=x, x_test=x[:2])
    assert form_of(load(str(tmp_path / "own.npz"))) == Form((28, 1, 28), 3, (), "float32")


def test_a_device_trains_on_a_file_without_a_test_part(tmp_path: Path) -> None:
    write_npz(tmp_path / "own.npz", x_test=None, y_test=None)
    dataset = load(str(tmp_path / "own.npz"), train_only=True)
    assert (len(dataset.train), len(dataset.test)) == (6, 0)
    with pytest.raises(DataError, match=r"test part of data set .* is empty.*add x_test and y_test"):
        load(str(tmp_path / "own.npz"))


def test_a_device_does_not_look_at_the_test_part(tmp_path: Path) -> None:
    write_npz(tmp_path / "own.npz", y_test=np.array([0, 99]))
    assert len(load(str(tmp_path / "own.npz"), train_only=True).test) == 0


def test_a_device_may_have_one_class(tmp_path: Path) -> None:
    write_npz(tmp_path / "own.npz", y_train=np.zeros(6, dtype=np.int64))
    assert load(str(tmp_path / "own.npz"), train_only=True).classes == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_test": None}, "has no x_test"),
        ({"y_train": np.zeros(6)}, "y_train .* is float64; labels must be integers"),
        ({"y_test": np.array([0, 3])}, r"label 3 of sample 1 in the test part"),
        ({"y_train": np.array(list("abcabc"))}, r"y_train .* is text; .*names, y = numpy\.unique"),
        ({"x_train": np.zeros((6, 3, 32, 32), dtype=np.uint8)}, r"\(6, 3, 32, 32\).*x\.transpose\(0, 2, 3, 1\)"),
        ({"x_train": np.zeros((6, 28 * 28), dtype=np.uint8)}, r"\(6, 784\).*reshape it"),
        (
            {"x_train": np.zeros((6, 28, 28, 1), dtype=np.float32)},
            r"looks like .*makes it 1 x 28 x 28",
        ),
        ({"x_train": np.zeros(6, dtype=np.float32)}, r"x of shape \(6,\); .*x\[:, None\] makes it one feature"),
        ({"x_train": np.zeros((6, 1, 1, 2, 2, 2), dtype=np.float32)}, "with one to 4 axes for each sample"),
        (
            {"x_train": np.zeros((6, 28, 28), dtype=np.float32)},
            r"shape \(28, 28\) and test samples of shape \(3, 5, 7\)",
        ),
        ({"x_train": np.zeros((6, 20), dtype=np.int64)}, "is int64; .*token ids cannot be trained on"),
        ({"y_train": np.zeros(6, dtype=np.float32)}, "train labels of float32 and test labels of int64"),
        (
            {"y_train": np.full(6, np.nan, dtype=np.float32)},
            "the target of sample 0 in the train part .* is nan, and 6",
        ),
        (
            {"y_train": np.zeros((6, 2, 2), dtype=np.float32)},
            r"shape \(6, 2, 2\); .*\(samples,\) or \(samples, outputs\)",
        ),
        ({"x_train": np.zeros((6, 3, 5, 7))}, r"x_train .* is float64; allowed are .*with astype\('float32'\)"),
        ({"x_train": np.zeros((6, 5, 7, 3), dtype=np.int64)}, r"is int64; .*pixels of 0\.\.255 with astype\('uint8'\)"),
        ({"x_train": np.zeros((6, 3, 5, 7), dtype=np.float32)}, "type float32 and test samples of type uint8"),
        ({"names": np.array(["a", "b"])}, r"label 2 of sample 2 in the train part .*give it a name, there are 2"),
        ({"names": np.array(["a", "b", "a"])}, "calls two classes 'a'"),
        ({"names": np.array(["a", "b", "c\nd"])}, r"class called 'c\\nd'; a name has 1 to 200 printable"),
        ({"names": np.array(["a", "b", "c" * 201])}, "a name has 1 to 200 printable"),
        ({"names": np.array(["a", "b", ""])}, "a name has 1 to 200 printable"),
        ({"names": np.arange(3)}, r"names in .* is int64 of shape \(3,\); expected a list of texts"),
        ({"x_train": np.full((6, 3, 5, 7), np.nan, dtype=np.float32)}, "sample 0 .* holds nan"),
        ({"x_train": np.array([{}] * 6, dtype=object)}, "without objects"),
        ({"x_train": np.zeros((0, 5, 7, 3), np.uint8), "y_train": np.zeros(0, np.uint8)}, "has 0 classes"),
    ],
)
def test_own_data_that_cannot_be_used_is_refused_with_the_reason(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    write_npz(tmp_path / "own.npz", **changes)
    with pytest.raises(DataError, match=message):
        load(str(tmp_path / "own.npz"))


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04cut"])
def test_a_file_that_is_no_npz_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "own.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"own\.npz cannot be read"):
        load(str(tmp_path / "own.npz"))


def test_a_damaged_npz_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    write_npz(path)
    content = bytearray(path.read_bytes())
    content[200:260] = bytes(60)
    path.write_bytes(content)
    with pytest.raises(DataError, match="cannot be read"):
        load(str(path))


def test_a_path_that_is_no_file_is_refused_with_the_places_looked_at(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=str(tmp_path / "absent.npz")):
        load("absent.npz", tmp_path)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    assert tuple(DATASETS) == ("digits", "cifar10", "cifar100", "speech_commands", "speech_commands_mel")
    with pytest.raises(DataError, match=r"digits, cifar10, cifar100, .*did you mean cifar10"):
        load("cifar-10")


def test_a_data_dir_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data_dir = .*absent is not a folder"):
        load("cifar10", tmp_path / "absent")


@pytest.mark.skipif(not (Path(REAL_DATA) / "cifar10_small.npz").is_file(), reason="no CIFAR-10 in $SPARSYEDGE_DATA")
def test_real_cifar10_has_its_well_known_mean() -> None:
    dataset = load("cifar10_small.npz", Path(REAL_DATA))
    assert dataset.classes == 10
    np.testing.assert_array_equal(np.bincount(dataset.train.y), [len(dataset.train) // 10] * 10)
    mean = dataset.train.x.mean(axis=(0, 2, 3)) / 255
    np.testing.assert_allclose(mean, [0.4914, 0.4822, 0.4465], atol=0.01)
