from collections.abc import Callable
from fractions import Fraction
from math import ceil

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

FloatArray = npt.NDArray[np.float32]
RunOp = Callable[..., FloatArray]
RunNode = Callable[..., list[FloatArray]]


def keep_count(x: FloatArray, w: FloatArray) -> int:
    return max(1, ceil(Fraction(int(np.count_nonzero(w)), w.size) * x.size))


def oracle(x: FloatArray, w: FloatArray) -> FloatArray:
    """The definition, by sorting. NaN ranks above infinity."""
    if x.size == 0 or np.count_nonzero(w) == w.size:
        return x
    magnitude = np.where(np.isnan(x), np.inf, np.abs(x))
    order = np.sort(magnitude, axis=None)
    tau = order[x.size - keep_count(x, w)]
    if np.count_nonzero(np.isnan(x)) >= keep_count(x, w):
        return np.where(np.isnan(x), x, np.float32(0))
    return np.where(magnitude >= tau, x, np.float32(0))


def mask(size: int, nonzeros: int) -> FloatArray:
    """Weights; only their zeros matter."""
    return (np.arange(size) < nonzeros).astype(np.float32)


@pytest.mark.parametrize("nonzeros", [1, 5, 50, 99])
@pytest.mark.parametrize("shape", [(16, 8, 12, 12), (3, 1), (1,), (2, 70_001)])
def test_largest_magnitudes_of_the_batch_are_kept(run_op: RunOp, nonzeros: int, shape: tuple[int, ...]) -> None:
    x, w = np.random.default_rng(1).standard_normal(shape).astype(np.float32), mask(100, nonzeros)
    pruned = run_op("PruneActivation", x, w)
    assert pruned.tobytes() == oracle(x, w).tobytes()
    assert np.count_nonzero(pruned) == keep_count(x, w)


floats = st.floats(width=32, allow_nan=False)
few_values = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, 1e-45, -np.inf])


@settings(max_examples=150, deadline=None)
@given(x=hnp.arrays(np.float32, st.integers(1, 300), elements=floats | few_values), data=st.data())
def test_any_input_agrees_with_the_definition(run_op: RunOp, x: FloatArray, data: st.DataObject) -> None:
    weights = data.draw(st.integers(1, 200))
    w = mask(weights, data.draw(st.integers(0, weights)))
    assert run_op("PruneActivation", x, w).tobytes() == oracle(x, w).tobytes()


def test_neighbouring_floats_are_told_apart(run_op: RunOp) -> None:
    x = (np.arange(1000, dtype=np.uint32) + np.float32(1.0).view(np.uint32)).view(np.float32)
    pruned = run_op("PruneActivation", np.random.default_rng(2).permutation(x), mask(1000, 123))
    assert np.sort(pruned)[::-1][:124].tolist() == [*x[::-1][:123].tolist(), 0.0]


@pytest.mark.parametrize(
    ("weights", "nonzeros", "elements"), [(3, 1, 3), (10, 1, 30), (49, 7, 7 * 49), (1000, 3, 7000)]
)
def test_a_whole_share_is_not_rounded_up(run_op: RunOp, weights: int, nonzeros: int, elements: int) -> None:
    x = np.arange(1, elements + 1, dtype=np.float32)
    kept = np.count_nonzero(run_op("PruneActivation", x, mask(weights, nonzeros)))
    assert kept == elements // weights * nonzeros


@pytest.mark.parametrize(("nonzeros", "kept"), [(0, 5), (1, 5), (20, 10)])
def test_least_share_is_kept_however_few_weights_are_left(run_node: RunNode, nonzeros: int, kept: int) -> None:
    x = np.arange(1, 501, dtype=np.float32)
    w = np.zeros(1000, np.float32)
    w[:nonzeros] = 1
    (pruned,) = run_node("PruneActivation", [x, w], 1, least=100)  # of 10,000: 1 %
    assert np.count_nonzero(pruned) == kept


def test_ties_at_the_threshold_are_all_kept(run_op: RunOp) -> None:
    x = np.array([3.0, -1.0, 1.0, 0.5, 1.0], np.float32)
    assert run_op("PruneActivation", x, mask(5, 2)).tolist() == [3.0, -1.0, 1.0, 0.0, 1.0]


def test_dense_weights_leave_the_input_unchanged(run_op: RunOp) -> None:
    x = np.array([0.0, -0.0, 1e-45, np.nan, -np.inf], np.float32)
    assert run_op("PruneActivation", x, mask(4, 4)).tobytes() == x.tobytes()


def test_input_of_zeros_stays_as_it_is(run_op: RunOp) -> None:
    x = np.array([0.0, -0.0] * 50, np.float32)
    assert run_op("PruneActivation", x, mask(100, 5)).tobytes() == x.tobytes()


def test_nothing_is_dropped_when_the_input_is_sparser_than_the_weights(run_op: RunOp) -> None:
    x = np.array([0.0, 4.0, 0.0, -3.0, 0.0, 0.0], np.float32)
    assert run_op("PruneActivation", x, mask(6, 3)).tobytes() == x.tobytes()


def test_an_empty_layer_keeps_its_largest_input(run_op: RunOp) -> None:
    x = np.random.default_rng(5).standard_normal((4, 30)).astype(np.float32)
    pruned = run_op("PruneActivation", x, mask(10, 0))
    assert np.flatnonzero(pruned).tolist() == [np.argmax(np.abs(x))]


def test_negative_zero_weights_count_as_zeros(run_op: RunOp) -> None:
    x = np.array([1.0, 2.0], np.float32)
    assert run_op("PruneActivation", x, np.array([-0.0, 1.0], np.float32)).tolist() == [0.0, 2.0]


@pytest.mark.parametrize("nonzeros", [1, 3, 50])
def test_nan_is_never_dropped(run_op: RunOp, nonzeros: int) -> None:
    x = np.random.default_rng(6).standard_normal(100).astype(np.float32)
    x[[10, 20]] = np.array([0x7FC00000, 0xFF800001], np.uint32).view(np.float32)  # two NaNs of different bits
    x[30] = np.inf
    pruned = run_op("PruneActivation", x, mask(100, nonzeros))
    assert np.isnan(pruned[[10, 20]]).all()
    assert pruned.tobytes() == oracle(x, mask(100, nonzeros)).tobytes()


def test_an_empty_input_gives_an_empty_output(run_op: RunOp) -> None:
    assert run_op("PruneActivation", np.zeros((0, 8), np.float32), mask(4, 1)).shape == (0, 8)


def test_empty_weights_count_as_dense(run_op: RunOp) -> None:
    x = np.array([1.0, 2.0], np.float32)
    assert run_op("PruneActivation", x, np.zeros(0, np.float32)).tolist() == [1.0, 2.0]
