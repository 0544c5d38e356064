"""Pooling and the bias of a linear layer against torch in double precision."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

Array = npt.NDArray[Any]
RunNode = Callable[..., list[Array]]

SHAPES = [(16, 8, 4, 4), (1, 3, 8, 8), (5, 3, 1, 9), (17, 2, 7, 5), (33, 4, 6, 3)]
RESNET_STEM = {"kernel": 3, "stride": 2, "pad": 1}
WINDOWS = [RESNET_STEM, {"kernel": 2, "stride": 2, "pad": 0}, {"kernel": 3, "stride": 1, "pad": 1}]
FITTING = [(s, w) for s in SHAPES for w in WINDOWS if min(s[2:]) + 2 * w["pad"] >= w["kernel"]]


def to_lanes(x: Array, halo: int = 0) -> Array:
    padded = np.pad(x, ((0, -len(x) % 16), (0, 0), (halo, halo), (halo, halo)))
    return np.ascontiguousarray(np.moveaxis(padded.reshape(-1, 16, *padded.shape[1:]), 1, -1))


def random(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# ---- mean ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("halo", [0, 1])
@pytest.mark.parametrize("shape", SHAPES)
def test_mean_of_a_plane(run_node: RunNode, shape: tuple[int, ...], halo: int) -> None:
    x = random(1, *shape)
    (y,) = run_node("MeanPool", [to_lanes(x, halo)], pad_in=halo)
    expected = to_lanes(x.astype(np.float64).mean((2, 3), keepdims=True))
    assert y.shape == expected.shape
    assert np.abs(y - expected).max() < 1e-7


@pytest.mark.parametrize("halo", [0, 1])
@pytest.mark.parametrize("shape", SHAPES)
def test_gradient_of_the_mean_is_shared_by_the_plane(run_node: RunNode, shape: tuple[int, ...], halo: int) -> None:
    dy = random(2, *shape[:2], 1, 1)
    (dx,) = run_node("MeanPoolGrad", [to_lanes(dy)], in_h=shape[2], in_w=shape[3], pad_out=halo)
    expected = np.broadcast_to(dy / np.float32(shape[2] * shape[3]), shape)
    assert dx.tobytes() == to_lanes(expected, halo).tobytes()


# ---- maximum ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "window"), FITTING, ids=str)
def test_maximum_and_its_gradient_agree_with_torch(
    run_node: RunNode, shape: tuple[int, ...], window: dict[str, int]
) -> None:
    x = np.round(random(3, *shape) * 2) / 2  # many ties
    leaf = torch.from_numpy(x).requires_grad_()
    expected = torch.nn.functional.max_pool2d(leaf, window["kernel"], window["stride"], window["pad"])
    dy = random(4, *expected.shape)
    expected.backward(torch.from_numpy(dy))  # type: ignore[no-untyped-call]
    assert leaf.grad is not None

    y, argmax = run_node("MaxPool", [to_lanes(x, 2)], 2, pad_in=2, pad_out=1, **window)
    (dx,) = run_node("MaxPoolGrad", [to_lanes(dy, 1), argmax], in_h=shape[2], in_w=shape[3], pad_in=2, **window)
    assert y.tobytes() == to_lanes(expected.detach().numpy(), 1).tobytes()
    assert np.abs(dx - to_lanes(leaf.grad.numpy(), 2)).max() < 1e-6


def test_padding_never_wins_over_negative_values(run_node: RunNode) -> None:
    x = to_lanes(np.full((16, 1, 3, 3), -2.0, np.float32))
    y, _ = run_node("MaxPool", [x], 2, **RESNET_STEM)
    assert (y == -2).all()


def test_nan_wins_and_minus_infinity_has_a_place(run_node: RunNode) -> None:
    x = np.full((16, 1, 2, 2), -np.inf, np.float32)
    x[0, 0, 0, 1] = np.nan
    y, argmax = run_node("MaxPool", [to_lanes(x)], 2, kernel=2, stride=2, pad=0)
    assert np.isnan(y[0, 0, 0, 0, 0])
    assert (y[0, 0, 0, 0, 1:] == -np.inf).all()
    assert argmax[0, 0, 0, 0].tolist() == [1] + [0] * 15


def test_a_plane_smaller_than_the_window_is_refused(run_node: RunNode) -> None:
    with pytest.raises(Exception, match="MaxPool: a plane of 1 x 9 is smaller than the window, kernel 2 with pad 0"):
        run_node("MaxPool", [to_lanes(random(5, 1, 1, 1, 9))], 2, kernel=2, stride=2, pad=0)


def test_places_of_another_shape_are_refused(run_node: RunNode) -> None:
    dy, argmax = np.zeros((1, 2, 3, 3, 16), np.float32), np.zeros((1, 2, 3, 3, 16), np.uint8)
    with pytest.raises(Exception, match=r"MaxPoolGrad: argmax has shape \[1,2,3,3,16\], must be \[1,2,4,4,16\]"):
        run_node("MaxPoolGrad", [dy, argmax], in_h=8, in_w=8, **RESNET_STEM)


# ---- bias ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(16, 10, 1, 1), (5, 3, 2, 4), (33, 7, 1, 1)])
def test_bias_is_added_to_images_only(run_node: RunNode, shape: tuple[int, ...]) -> None:
    x, bias = random(6, *shape), random(7, shape[1])
    n = np.array([shape[0]], np.int64)
    (y,) = run_node("AddBias", [to_lanes(x, 1), bias, n], pad_in=1)
    assert y.tobytes() == to_lanes(x + bias.reshape(1, -1, 1, 1), 1).tobytes()


@pytest.mark.parametrize("shape", [(16, 10, 1, 1), (5, 3, 2, 4), (33, 7, 1, 1)])
def test_gradient_of_the_bias_is_a_sum(run_node: RunNode, shape: tuple[int, ...]) -> None:
    dy = random(8, *shape)
    (dbias,) = run_node("AddBiasGrad", [to_lanes(dy)])
    assert np.allclose(dbias, dy.astype(np.float64).sum((0, 2, 3)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("threads", [2, 3])
def test_thread_count_does_not_change_a_bit(run_node: RunNode, threads: int) -> None:
    x, n = to_lanes(random(9, 33, 40, 32, 32)), np.array([33], np.int64)

    def results(count: int) -> list[Array]:
        y, argmax = run_node("MaxPool", [x], 2, count, **RESNET_STEM)
        dx = run_node("MaxPoolGrad", [y, argmax], 1, count, in_h=32, in_w=32, **RESNET_STEM)
        mean = run_node("MeanPool", [x], 1, count)
        share = run_node("MeanPoolGrad", mean, 1, count, in_h=32, in_w=32)
        bias = run_node("AddBiasGrad", [x], 1, count)
        return [y, argmax, *dx, *mean, *share, *bias, *run_node("AddBias", [x, bias[0], n], 1, count)]

    assert all(a.tobytes() == b.tobytes() for a, b in zip(results(1), results(threads), strict=True))
