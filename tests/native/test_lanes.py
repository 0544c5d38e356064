"""The lanes layout [G, C, H+2p, W+2p, 16]: images go in, come out again, and nothing else is in it but zeros."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

Array = npt.NDArray[Any]
RunNode = Callable[..., list[Array]]

SHAPES = [(1, 3, 8, 8), (5, 2, 1, 7), (16, 3, 5, 4), (17, 10, 1, 1), (33, 4, 6, 9)]


def lanes(x: Array, halo: int = 0) -> Array:
    """The definition: pad planes by zeros, pad the batch by zeros, put 16 images innermost."""
    padded = np.pad(x, ((0, -len(x) % 16), (0, 0), (halo, halo), (halo, halo)))
    return np.ascontiguousarray(np.moveaxis(padded.reshape(-1, 16, *padded.shape[1:]), 1, -1))


def batch(n: int) -> Array:
    return np.array([n], np.int64)


@pytest.mark.parametrize("halo", [0, 1, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_images_become_lanes_with_zeros_around_them(run_node: RunNode, shape: tuple[int, ...], halo: int) -> None:
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    (result,) = run_node("ToLanes", [x], pad_out=halo)
    assert result.tobytes() == lanes(x, halo).tobytes()
    assert result.shape == lanes(x, halo).shape


@pytest.mark.parametrize("halo", [0, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_lanes_become_images_again(run_node: RunNode, shape: tuple[int, ...], halo: int) -> None:
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    (result,) = run_node("FromLanes", [lanes(x, halo), batch(len(x))], pad_in=halo)
    assert result.tobytes() == x.tobytes()
    assert result.shape == x.shape


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


@pytest.mark.parametrize("threads", [2, 3])
def test_thread_count_does_not_change_a_bit(run_node: RunNode, threads: int) -> None:
    x = np.random.default_rng(3).standard_normal((33, 40, 32, 32)).astype(np.float32)
    (there,) = run_node("ToLanes", [x], threads=threads, pad_out=1)
    (back,) = run_node("FromLanes", [there, batch(33)], threads=threads, pad_in=1)
    assert there.tobytes() == lanes(x, 1).tobytes()
    assert back.tobytes() == x.tobytes()
