"""MaxPool at the edges: padding, NaN, infinity, shapes that do not fit."""

from collections.abc import Callable

import numpy as np
import pytest
from fixtures.op_cases.case import Array, to_lanes

RunNode = Callable[..., list[Array]]

RESNET_STEM = {"kernel": 3, "stride": 2, "pad": 1}


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
        run_node("MaxPool", [np.zeros((1, 1, 1, 9, 16), np.float32)], 2, kernel=2, stride=2, pad=0)


def test_places_of_another_shape_are_refused(run_node: RunNode) -> None:
    dy, argmax = np.zeros((1, 2, 3, 3, 16), np.float32), np.zeros((1, 2, 3, 3, 16), np.uint8)
    with pytest.raises(Exception, match=r"MaxPoolGrad: argmax has shape \[1,2,3,3,16\], must be \[1,2,4,4,16\]"):
        run_node("MaxPoolGrad", [dy, argmax], in_h=8, in_w=8, **RESNET_STEM)
