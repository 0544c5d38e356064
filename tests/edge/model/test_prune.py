"""Global magnitude pruning: exact counts, ties, and what it leaves alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sparsyedge.edge.model.prune import prune_global, removed_count
from sparsyedge.edge.tensors import FloatArray, State, count_nonzero

WEIGHTS = hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(-2, 2, width=16))


@given(a=WEIGHTS, b=WEIGHTS, sparsity=st.floats(0, 0.99))
def test_exactly_the_smallest_magnitudes_are_removed(a: FloatArray, b: FloatArray, sparsity: float) -> None:
    pruned = prune_global({"a": a, "b": b}, ["a", "b"], sparsity)
    before, after = np.concatenate([a, b]), np.concatenate([pruned["a"], pruned["b"]])
    removed = removed_count(before.size, sparsity)
    already_zero = int(np.count_nonzero(before == 0))
    assert np.count_nonzero(after) == before.size - max(removed, already_zero)
    kept = after != 0
    assert np.array_equal(after[kept], before[kept])
    if kept.any() and not kept.all():
        assert np.abs(before[kept]).min() >= np.abs(before[~kept]).max()


MANY_ZEROS = hnp.arrays(
    np.float32, st.integers(1, 60), elements=st.sampled_from([0.0, 0.0, 0.0, 0.0, -0.0, 1.0, -1.0, 0.5, 2.0])
)


@given(a=MANY_ZEROS, b=MANY_ZEROS, sparsity=st.floats(0, 1))
def test_a_sparse_model_is_pruned_bit_for_bit_as_a_ranking_of_all_its_entries_says(
    a: FloatArray, b: FloatArray, sparsity: float
) -> None:
    pruned = prune_global({"a": a, "b": b}, ["a", "b"], sparsity)
    expected = np.concatenate([a, b])
    expected[np.argsort(np.abs(expected), kind="stable")[: removed_count(expected.size, sparsity)]] = 0
    assert np.concatenate([pruned["a"], pruned["b"]]).tobytes() == expected.tobytes()


def test_the_ranking_is_global_so_a_layer_of_small_weights_goes_first() -> None:
    state: State = {"small": np.full(10, 0.1, np.float32), "large": np.full(10, 1.0, np.float32)}
    pruned = prune_global(state, ["small", "large"], 0.5)
    assert count_nonzero(pruned, ["small"]) == 0
    assert count_nonzero(pruned, ["large"]) == 10


def test_of_equal_magnitudes_the_first_in_order_go() -> None:
    state: State = {"a": np.array([1, -1, 1, -1], np.float32)}
    np.testing.assert_array_equal(prune_global(state, ["a"], 0.5)["a"], [0, 0, 1, -1])


def test_tensors_that_are_not_named_and_the_original_stay_as_they_are() -> None:
    state: State = {"w": np.array([0.1, 2.0], np.float32), "bias": np.array([0.01], np.float32)}
    pruned = prune_global(state, ["w"], 0.5)
    assert pruned["bias"] is state["bias"]
    np.testing.assert_array_equal(state["w"], np.array([0.1, 2.0], np.float32))


@pytest.mark.parametrize(
    ("size", "sparsity", "removed"), [(11_164_352, 0.95, 10_606_134), (11_164_352, 0.99, 11_052_708)]
)
def test_the_budget_of_resnet18_is_that_of_the_paper(size: int, sparsity: float, removed: int) -> None:
    assert removed_count(size, sparsity) == removed
