"""Federated averaging."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from sparsyedge.coordinator.aggregation.mean import average
from sparsyedge.edge.tensors import FloatArray, State, model_id

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
tensors = npst.arrays(np.float32, (3, 4), elements=finite)
updates = st.lists(st.tuples(st.integers(1, 10**9), tensors), min_size=1, max_size=6)


def states_of(seed: int, count: int) -> list[tuple[int, State]]:
    generator = np.random.default_rng(seed)
    return [
        (
            int(generator.integers(1, 1000)),
            {
                "conv.weight": generator.standard_normal((8, 3, 3, 3)).astype(np.float32),
                "bn.running_var": generator.random(8).astype(np.float32),
            },
        )
        for _ in range(count)
    ]


def test_it_is_the_sample_weighted_mean_of_every_tensor() -> None:
    pairs = states_of(0, 5)
    averaged = average(pairs)
    for name in ("conv.weight", "bn.running_var"):
        stacked = np.stack([state[name] for _, state in pairs]).astype(np.float64)
        expected = np.average(stacked, axis=0, weights=[samples for samples, _ in pairs])
        np.testing.assert_allclose(averaged[name], expected, rtol=1e-6, atol=1e-12)
        assert averaged[name].dtype == np.float32


def test_without_pruning_and_with_equal_devices_it_is_plain_fedavg() -> None:
    pairs = [(500, state) for _, state in states_of(1, 4)]
    plain = np.mean([state["conv.weight"].astype(np.float64) for _, state in pairs], axis=0).astype(np.float32)
    np.testing.assert_allclose(average(pairs)["conv.weight"], plain, rtol=1e-6, atol=1e-12)


def test_the_mean_of_one_update_is_that_update() -> None:
    pairs = states_of(2, 1)
    assert model_id(average(pairs)) == model_id(pairs[0][1])


def test_the_same_order_gives_the_same_bits() -> None:
    assert model_id(average(states_of(3, 6))) == model_id(average(iter(states_of(3, 6))))


def test_the_updates_stay_as_they_are() -> None:
    pairs = states_of(4, 3)
    before = [model_id(state) for _, state in pairs]
    average(pairs)
    assert [model_id(state) for _, state in pairs] == before


def test_an_update_is_let_go_before_the_next_is_made() -> None:
    held: list[weakref.ref[FloatArray]] = []

    def update() -> tuple[int, State]:
        tensor = np.ones(4, dtype=np.float32)
        held.append(weakref.ref(tensor))
        return 1, {"w": tensor}

    def stream() -> Iterator[tuple[int, State]]:
        for _ in range(3):
            assert all(reference() is None for reference in held)
            yield update()

    average(stream())


def test_no_updates_have_no_mean() -> None:
    with pytest.raises(ValueError, match="average of no updates"):
        average([])


@given(updates)
def test_zero_on_every_device_stays_exactly_zero(pairs: list[tuple[int, FloatArray]]) -> None:
    masked = [(samples, {"w": np.where(np.eye(3, 4) > 0, tensor, 0).astype(np.float32)}) for samples, tensor in pairs]
    averaged = average(masked)["w"]
    assert (averaged[np.eye(3, 4) == 0] == 0).all()


@given(updates)
def test_no_negative_zero_and_nothing_that_is_not_finite_comes_out(pairs: list[tuple[int, FloatArray]]) -> None:
    averaged = average([(samples, {"w": tensor}) for samples, tensor in pairs])["w"]
    assert np.isfinite(averaged).all()
    assert not np.signbit(averaged[averaged == 0]).any()


def test_a_mean_too_small_for_float32_is_plain_zero() -> None:
    tiny = np.full(2, -1.4e-45, dtype=np.float32)
    averaged = average([(1, {"w": tiny}), (10, {"w": np.zeros(2, dtype=np.float32)})])["w"]
    assert not np.signbit(averaged).any()
