"""ToLanes and FromLanes refuse what does not fit the lanes layout [G, C, H+2p, W+2p, 16]."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

Array = npt.NDArray[Any]
RunNode = Callable[..., list[Array]]


def batch(n: int) -> Array:
    return np.array([n], np.int64)


@pytest.mark.parametrize("shape", [(0, 3, 4, 4), (2, 3, 0, 4), (3, 4, 4)])
def test_images_of_no_size_are_refused(run_node: RunNode, shape: tuple[int, ...]) -> None:
    with pytest.raises(Exception, match=r"ToLanes: x has shape .*, must be \[N,C,H,W\] with no empty dimension"):
        run_node("ToLanes", [np.zeros(shape, np.float32)])


@pytest.mark.parametrize(("n", "groups"), [(0, 1), (17, 1), (16, 2), (33, 2), (-1, 1)])
def test_a_batch_that_does_not_fill_its_groups_is_refused(run_node: RunNode, n: int, groups: int) -> None:
    with pytest.raises(Exception, match=rf"FromLanes: batch is {n}, must be from .* for {groups} groups"):
        run_node("FromLanes", [np.zeros((groups, 2, 3, 3, 16), np.float32), batch(n)])


@pytest.mark.parametrize("shape", [(1, 2, 3, 3, 8), (1, 2, 3, 3), (1, 2, 2, 3, 16), (0, 2, 3, 3, 16)])
def test_a_tensor_in_another_layout_is_refused(run_node: RunNode, shape: tuple[int, ...]) -> None:
    with pytest.raises(Exception, match=r"FromLanes: lanes has shape .*, must be \[G,C,H\+2,W\+2,16\]"):
        run_node("FromLanes", [np.zeros(shape, np.float32), batch(1)], pad_in=1)


def test_a_halo_beyond_reason_is_refused(run_node: RunNode) -> None:
    with pytest.raises(Exception, match="ToLanes: attribute pad_out is -1, must be from 0 to 16"):
        run_node("ToLanes", [np.zeros((1, 1, 1, 1), np.float32)], pad_out=-1)
