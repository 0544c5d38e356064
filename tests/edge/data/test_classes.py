"""Data meets a model: classes go by name, and what the model cannot use is refused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.fake_coordinator import Coordinator, FakeSession, manifest, round_task, samples
from numpy.typing import NDArray

from sparsyedge.edge.commands.edge_command import load_data
from sparsyedge.edge.config import DataConfig
from sparsyedge.edge.data import Dataset, Samples
from sparsyedge.edge.data.classes import fit_to_classes, fit_to_model
from sparsyedge.edge.device import local_data as local_data_module
from sparsyedge.edge.device.agent import Agent
from sparsyedge.edge.errors import ArtifactError, DataError
from sparsyedge.edge.model.artifacts import Manifest, decode_manifest
from sparsyedge.edge.protocol.chunks import blob_of
from sparsyedge.edge.protocol.messages import DeviceStatus, decode
from sparsyedge.edge.tensors import FloatArray

CLOTHES = ("coat", "dress", "trouser", "tshirt")


def model(**changes: Any) -> Manifest:
    return decode_manifest(manifest(**changes), source="test")


def fit(data: Samples, names: tuple[str, ...] = (), **changes: Any) -> Samples:
    return fit_to_model(data, names, model(**changes).form, owner="this device's data")


def floats(low: float, high: float) -> Samples:
    x = np.linspace(low, high, 10 * 3 * 8 * 8, dtype=np.float32).reshape(10, 3, 8, 8)
    return Samples(x, np.zeros(10, dtype=np.int64))


# ---- by name ---------------------------------------------------------------------------------------------------------


def test_labels_are_renumbered_by_name_and_keep_their_order() -> None:
    data = samples()
    fitted = fit(Samples(data.x, np.array([1, 0, 1, 2, 0] * 2)), ("coat", "tshirt", "dress"), class_names=CLOTHES)
    assert fitted.y.tolist() == [3, 0, 3, 1, 0] * 2
    assert fitted.x is data.x


def test_an_unknown_class_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(DataError, match=r"samples of class 'hat', .* it knows coat, dress, trouser, tshirt: rename"):
        fit_to_classes(np.array([0, 1]), ("coat", "hat"), CLOTHES, owner="this device's data")


def test_a_class_in_another_spelling_is_refused_with_the_right_one() -> None:
    with pytest.raises(DataError, match=r"class 'T-Shirt', .*did you mean 'tshirt'\?"):
        fit_to_classes(np.array([0]), ("T-Shirt",), CLOTHES, owner="this device's data")


def test_a_refusal_is_no_longer_than_a_screen_however_many_classes_there_are() -> None:
    known = [f"class number {number}" for number in range(1000)]
    with pytest.raises(DataError) as caught:
        fit_to_classes(np.arange(500), [f"q{number}" for number in range(500)], known, owner="this device's data")
    assert "'q0' (and 499 more)" in str(caught.value)
    assert len(str(caught.value)) < 700


def test_an_empty_folder_of_an_unknown_class_is_passed_over_with_a_note(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    labels = fit_to_classes(np.array([0, 2]), ("coat", "old", "dress"), CLOTHES, owner="this device's data")
    assert labels.tolist() == [0, 1]
    assert "no samples and that the model does not know: old" in caplog.text
    assert "no samples of 2 of the model's 4 classes: trouser, tshirt" in caplog.text


def test_names_with_accents_are_the_same_however_a_system_writes_them() -> None:
    labels = fit_to_classes(np.array([0]), ("cafe\u0301",), ("bar", "caf\u00e9"), owner="this device's data")
    assert labels.tolist() == [1]


def test_data_without_names_goes_by_number() -> None:
    assert fit(samples(label=2), class_names=CLOTHES).y.tolist() == [2] * 10
    with pytest.raises(DataError, match=r"this device's data has label 4, the model knows 0\.\.3; use"):
        fit(samples(label=4), class_names=CLOTHES)


def test_named_classes_and_a_model_without_names_must_be_as_many() -> None:
    assert fit(samples(label=2), CLOTHES).y.tolist() == [2] * 10
    with pytest.raises(DataError, match=r"3 classes with names \(coat, dress, tshirt\), the model has 4 without"):
        fit(samples(label=2), ("coat", "dress", "tshirt"))


@pytest.mark.parametrize("names", [("a", "b", "c"), ("a", "b", "c", "a"), ("a", "b", "c", "d\n2026 ERROR all is lost")])
def test_a_manifest_whose_names_are_not_its_classes_is_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(ArtifactError, match=r"class names for 4 classes; each class has a name of its own"):
        model(class_names=names)


# ---- shape and type --------------------------------------------------------------------------------------------------


def test_samples_of_another_shape_are_refused() -> None:
    with pytest.raises(DataError, match=r"samples of shape \(1, 8, 8\), the model takes \(3, 8, 8\)"):
        fit(samples(shape=(1, 8, 8)))


@pytest.mark.parametrize(
    ("data", "sample_type", "message"),
    [
        (samples(), "float32", "is uint8, the model was exported for float32 data"),
        (floats(-1, 1), "int16", "is float32, the model was exported for int16 data"),
        (floats(-2, 2), "uint8", r"float32 from -2 to 2, .* or float32 from -1 to 1; save it as uint8"),
        (floats(0, 1), "uint8", r"float32 from 0 to 1, .*scale it with x \* 2 - 1"),
    ],
)
def test_numbers_that_are_scaled_in_another_way_are_refused(data: Samples, sample_type: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        fit(data, sample_type=sample_type)


def test_pixels_that_are_normalised_already_suit_a_model_of_pixels() -> None:
    data = floats(-1, 1)
    assert fit(data, sample_type="uint8").x is data.x


# ---- on a device -----------------------------------------------------------------------------------------------------


def write_clothes(folder: Path, names: tuple[str, ...]) -> Path:
    """Write five images per class; the shade of red tells the class."""
    for name in names:
        (folder / name).mkdir(parents=True)
        pixels = bytes([10 * CLOTHES.index(name), 0, 255]) * 64
        for number in range(5):
            (folder / name / f"{number}.ppm").write_bytes(b"P6\n8 8\n255\n" + pixels)
    return folder


def read_folders(folder: Path) -> Dataset:
    return load_data(DataConfig(dataset=str(folder)))


def red(x: FloatArray) -> list[int]:
    """The red values of a batch's first pixels, before normalisation."""
    return [round(float(value)) for value in (x[:, 0, 0, 0] + 1) * 127.5]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("names", [CLOTHES, ("coat", "dress", "tshirt"), ("tshirt",)])
def test_devices_train_the_same_numbers_for_the_same_names(
    names: tuple[str, ...],
    coordinator: Coordinator,
    make_agent: Callable[..., Agent],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: set[tuple[int, int]] = set()
    step = FakeSession.train_step

    def watched(self: FakeSession, x: FloatArray, y: NDArray[np.int64], learning_rate: float, **rest: Any) -> float:
        seen.update(zip(red(x), y.tolist(), strict=True))
        return step(self, x, y, learning_rate, **rest)

    monkeypatch.setattr(FakeSession, "train_step", watched)
    named = manifest(class_names=CLOTHES)
    coordinator.offer_blob(named)
    coordinator.announce(round_task(manifest=blob_of(named, chunk_bytes=1024)))
    dataset = read_folders(write_clothes(tmp_path / "data", names))
    make_agent(dataset.train, class_names=dataset.names).run()
    assert seen == {(10 * CLOTHES.index(name), CLOTHES.index(name)) for name in names}


@pytest.mark.timeout(300)
def test_another_run_maps_the_names_anew(
    coordinator: Coordinator, make_agent: Callable[..., Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[set[int]] = []
    step = FakeSession.train_step

    def watched(self: FakeSession, x: FloatArray, y: NDArray[np.int64], learning_rate: float, **rest: Any) -> float:
        seen.append(set(y.tolist()))
        return step(self, x, y, learning_rate, **rest)

    monkeypatch.setattr(FakeSession, "train_step", watched)
    first, second = (manifest(class_names=names) for names in (CLOTHES, CLOTHES[::-1]))
    tasks = [
        round_task(run=run, manifest=coordinator.offer_blob(content)) for run, content in (("a", first), ("b", second))
    ]

    def go_on() -> None:
        coordinator.assembly = None
        coordinator.after_verdict = lambda: coordinator.announce(round_task(state="finished"))
        coordinator.announce(tasks[1])

    coordinator.after_verdict = go_on
    coordinator.announce(tasks[0])
    make_agent(samples(label=0), class_names=("trouser",)).run()
    assert seen == [{2}] * 6 + [{1}] * 6


@pytest.mark.timeout(300)
def test_a_device_with_a_class_that_the_model_does_not_know_declines(
    coordinator: Coordinator, make_agent: Callable[..., Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    def tried(*arguments: Any, **options: Any) -> Samples:
        coordinator.announce(round_task(state="finished"))
        return fit_to_model(*arguments, **options)

    monkeypatch.setattr(local_data_module, "fit_to_model", tried)
    coordinator.announce(round_task(manifest=coordinator.offer_blob(manifest(class_names=CLOTHES))))
    make_agent(samples(label=0), class_names=("hat",)).run()
    reasons = [decode(payload, DeviceStatus).unfit for payload in coordinator.sent("status")]
    assert any(each.startswith("this device's data has samples of class 'hat', which the model") for each in reasons)
    assert FakeSession.steps == 0
