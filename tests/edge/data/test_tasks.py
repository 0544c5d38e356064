"""Samples that are no images, and regressions: what is read, checked, shared out and fitted to a model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.fake_coordinator import Coordinator, FakeSession, manifest, round_task, samples
from fixtures.small_data import MOVES, accelerometer, diabetes, write_npz
from numpy.typing import NDArray

from sparsyedge.edge.data import Dataset, Form, Samples, check, check_classes, form_of, load, share_out
from sparsyedge.edge.data.classes import fit_to_model
from sparsyedge.edge.data.form import describe
from sparsyedge.edge.device import local_data as local_data_module
from sparsyedge.edge.device.agent import Agent
from sparsyedge.edge.errors import DataError
from sparsyedge.edge.protocol.messages import DeviceStatus, decode

FEATURES = Form((10,), 1, ("progression",), "float32", "regression")


def floats(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(3).standard_normal(shape, dtype=np.float32)


def regression(count: int = 6, *, outputs: int = 2, names: tuple[str, ...] = ()) -> Dataset:
    part = Samples(floats(count, 4), floats(count, outputs))
    return Dataset("own", part, part, outputs, names)


def fit(data: Samples, model: Form, names: tuple[str, ...] = ()) -> Samples:
    return fit_to_model(data, names, model, owner="this device's data")


# ---- read ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(7,), (3, 128), (2, 5, 6), (1, 4, 5, 6)])
def test_float_samples_of_one_to_four_axes_are_taken_as_they_are(shape: tuple[int, ...], tmp_path: Path) -> None:
    x = floats(6, *shape)
    np.savez(tmp_path / "own.npz", x_train=x, y_train=np.arange(6) % 3, x_test=x, y_test=np.arange(6) % 3)
    dataset = load(str(tmp_path / "own.npz"))
    assert form_of(dataset) == Form(shape, 3, (), "float32")
    batch, labels = dataset.train.batch(np.array([4, 1]))
    np.testing.assert_array_equal(batch, x[[4, 1]])
    assert (labels.dtype.name, labels.tolist()) == ("int64", [1, 1])


def test_signals_are_described_by_their_own_axes(tmp_path: Path) -> None:
    dataset = load(str(write_npz(accelerometer(), tmp_path / "moves.npz")))
    assert (form_of(dataset).shape, dataset.names) == ((3, 128), MOVES)
    assert describe(form_of(dataset))[0] == "input    3 x 128 (channels, length)"


@pytest.mark.parametrize("shape", [(6,), (6, 1)])
def test_float_labels_are_the_targets_of_a_regression(shape: tuple[int, ...], tmp_path: Path) -> None:
    y = floats(*shape)
    np.savez(tmp_path / "own.npz", x_train=floats(6, 4), y_train=y)
    dataset = load(str(tmp_path / "own.npz"), train_only=True)
    assert (dataset.task, dataset.outputs) == ("regression", 1)
    _, targets = dataset.train.batch(np.array([5, 0]))
    assert (targets.dtype.name, targets.shape) == ("float32", (2, 1))
    np.testing.assert_array_equal(targets[:, 0], y.reshape(-1)[[5, 0]])


def test_a_regression_is_described_with_the_range_of_its_targets(tmp_path: Path) -> None:
    dataset = load(str(write_npz(diabetes(), tmp_path / "diabetes.npz")))
    assert form_of(dataset) == FEATURES
    lines = describe(form_of(dataset), dataset.train)
    assert lines[0] == "input    10 (features)"
    assert lines[2:] == ["outputs  1: progression", "targets  float32, a regression, used as they are: -1.65 to 2.52"]
    assert max(map(len, lines)) <= 80


def test_square_signals_are_noted_since_they_may_be_grey_images(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    np.savez(tmp_path / "own.npz", x_train=floats(4, 28, 28), y_train=np.arange(4) % 2)
    load(str(tmp_path / "own.npz"), train_only=True)
    (note,) = (record for record in caplog.records if record.levelno == logging.WARNING)
    assert "taken as signals of 28 channels and length 28; for grey images, store x[:, None]" in note.getMessage()


# ---- checked ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_target_that_is_not_finite_is_refused_with_its_sample(value: float) -> None:
    data = regression()
    data.train.y[3, 1] = value
    with pytest.raises(DataError, match=rf"target of sample 3 in the train part .* is {value}, and 1 of 6"):
        check(data)


def test_parts_with_different_numbers_of_targets_are_refused() -> None:
    other = Samples(floats(6, 4), floats(6, 3))
    with pytest.raises(DataError, match="test part of data set own has 3 targets per sample, the data set has 2"):
        check(replace(regression(), test=other))


def test_parts_with_different_tasks_are_refused() -> None:
    other = Samples(floats(6, 4), np.zeros(6, dtype=np.int64))
    with pytest.raises(DataError, match=r"train labels of float32 and test labels of int64; .*learns one of them"):
        check(replace(regression(), test=other))


def test_names_of_outputs_are_as_many_as_outputs() -> None:
    check(regression(names=("height", "weight")))
    with pytest.raises(DataError, match="2 outputs and 1 names; give each output one name"):
        check(regression(names=("height",)))


def test_a_regression_of_float64_is_refused_where_it_comes_from_a_package() -> None:
    part = Samples(floats(6, 4), np.zeros((6, 1)))  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"y of float64 and shape \(6, 1\); targets of a regression are float32"):
        check(Dataset("own", part, part, 1))


def test_pixels_have_the_axes_of_an_image() -> None:
    part = Samples(np.zeros((6, 48), dtype=np.uint8), np.arange(6) % 2)
    with pytest.raises(DataError, match="convert what is not an image to float32"):
        check(Dataset("own", part, part, 2))


def test_numbers_that_nothing_scales_are_noted_and_not_taken_for_pixels(caplog: pytest.LogCaptureFixture) -> None:
    part = Samples(np.arange(24, dtype=np.float32).reshape(6, 4), np.arange(6) % 2)
    check(Dataset("own", part, part, 2))
    assert "is float32 from 0 to 23, and nothing scales it" in caplog.text


# ---- shared out ------------------------------------------------------------------------------------------------------


def test_shares_of_a_regression_are_equal_and_random_whatever_alpha_is() -> None:
    train = diabetes().train
    shares = share_out(train, 4, 0.1, 7)
    assert sorted(len(share) for share in shares) == [88, 88, 88, 89]
    assert sorted(np.concatenate(shares).tolist()) == list(range(len(train)))
    for other in (share_out(train, 4, 0.1, 7), share_out(train, 4, 100.0, 7)):
        assert [share.tolist() for share in other] == [share.tolist() for share in shares]
    assert share_out(train, 4, 0.1, 8)[0].tolist() != shares[0].tolist()


def test_a_regression_has_no_class_to_lack() -> None:
    check_classes(regression())


def test_more_devices_than_samples_are_refused_for_a_regression_too() -> None:
    with pytest.raises(DataError, match=r"devices = 7 is out of range; allowed is 1\.\.6"):
        share_out(regression().train, 7, 1.0)


# ---- fitted to a model -----------------------------------------------------------------------------------------------


def test_targets_that_fit_stay_as_they_are() -> None:
    data = diabetes()
    assert fit(data.train, FEATURES, data.names) is data.train
    assert fit(data.train, FEATURES) is data.train


@pytest.mark.parametrize(
    ("labels", "names", "changes", "message"),
    [
        (np.zeros(6, dtype=np.float32), (), {"task": "classes"}, "labels of float32, which is a regression, the model"),
        (np.zeros(6, dtype=np.int64), (), {}, "labels of int64, which are classes, the model is a regression with 1"),
        (np.zeros((6, 2), dtype=np.float32), (), {}, "has 2 targets per sample, the model has 1 outputs"),
        (np.zeros(6, dtype=np.float32), ("weight",), {}, "has the targets weight, the model gives progression"),
        (np.zeros(6, dtype=np.float32), (), {"shape": (9,)}, r"of shape \(10,\), the model takes \(9,\) \(features\)"),
    ],
)
def test_what_the_model_does_not_learn_is_refused(
    labels: Any, names: tuple[str, ...], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        fit(Samples(floats(6, 10), labels), replace(FEATURES, **changes), names)


@pytest.mark.timeout(300)
def test_a_device_whose_labels_are_targets_declines_a_model_of_classes(
    coordinator: Coordinator, make_agent: Callable[..., Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    def tried(*arguments: Any, **options: Any) -> Samples:
        coordinator.announce(round_task(state="finished"))
        return fit_to_model(*arguments, **options)

    monkeypatch.setattr(local_data_module, "fit_to_model", tried)
    coordinator.announce(round_task(manifest=coordinator.offer_blob(manifest())))
    data = samples()
    make_agent(Samples(data.x, np.zeros(len(data), dtype=np.float32))).run()
    reasons = [decode(payload, DeviceStatus).unfit for payload in coordinator.sent("status")]
    assert any("labels of float32, which is a regression, the model tells 4 classes apart" in each for each in reasons)
    assert FakeSession.steps == 0
