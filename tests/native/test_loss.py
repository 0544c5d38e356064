"""SoftmaxLoss at the edges: huge logits, NaN, labels that do not fit."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

Array = npt.NDArray[Any]
RunNode = Callable[..., list[Array]]


def to_lanes(logits: Array) -> Array:
    padded = np.pad(logits, ((0, -len(logits) % 16), (0, 0)))
    return np.ascontiguousarray(np.moveaxis(padded.reshape(-1, 16, logits.shape[1]), 1, -1))[:, :, None, None]


def some_logits(batch: int, classes: int, scale: float = 3.0) -> tuple[Array, Array]:
    rng = np.random.default_rng(batch)
    return (scale * rng.standard_normal((batch, classes))).astype(np.float32), rng.integers(0, classes, batch)


def test_huge_logits_do_not_overflow(run_node: RunNode) -> None:
    logits = np.array([[1e38, -1e38, 0.0]], np.float32)
    loss, dlogits = run_node("SoftmaxLoss", [to_lanes(logits), np.array([0])], 2)
    assert loss[0] == 0
    assert not dlogits.any()


def test_nan_reaches_the_loss(run_node: RunNode) -> None:
    logits, labels = some_logits(5, 4)
    logits[2, 3] = np.nan
    assert np.isnan(run_node("SoftmaxLoss", [to_lanes(logits), labels], 2)[0])


@pytest.mark.parametrize("label", [-1, 10, 2**40])
def test_a_label_out_of_range_is_refused_by_name(run_node: RunNode, label: int) -> None:
    logits, labels = some_logits(20, 10)
    labels[18] = label
    with pytest.raises(Exception, match=rf"SoftmaxLoss: labels\[18\] is {label}, must be from 0 to 9"):
        run_node("SoftmaxLoss", [to_lanes(logits), labels], 2)


@pytest.mark.parametrize("count", [0, 16, 33])
def test_labels_that_do_not_fit_the_groups_are_refused(run_node: RunNode, count: int) -> None:
    logits, _ = some_logits(20, 10)
    with pytest.raises(Exception, match=rf"SoftmaxLoss: labels has shape \[{count}\], must be \[N\] with"):
        run_node("SoftmaxLoss", [to_lanes(logits), np.zeros(count, np.int64)], 2)


def test_logits_of_a_plane_are_refused(run_node: RunNode) -> None:
    with pytest.raises(Exception, match=r"SoftmaxLoss: logits has shape \[1,10,2,1,16\], must be \[G,C,1,1,16\]"):
        run_node("SoftmaxLoss", [np.zeros((1, 10, 2, 1, 16), np.float32), np.zeros(3, np.int64)], 2)
