"""Federated averaging."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from fixtures import dense_way
from fixtures.dense_way import manifest_of, round_of
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from sparsyedge.coordinator.aggregation import mean
from sparsyedge.edge.model.methods import make_method
from sparsyedge.edge.tensors import FloatArray, State, model_id

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
tensors = npst.arrays(np.float32, (3, 4), elements=finite)
updates = st.lists(st.tuples(st.integers(1, 10**9), tensors), min_size=1, max_size=6)


def average(updates: Iterable[tuple[float, State]], *, senders_only: bool = False, block: int = 64) -> State:
    """The mean as the coordinator takes it, over the entries that each update keeps."""
    pairs = list(updates)
    base = pairs[0][1] if pairs else {"w": np.zeros(1, dtype=np.float32)}
    names = [name for name in base if name in ("w", "conv.weight")]
    manifest = manifest_of(base, make_method("sparsyfed", sparsity=0.5), names)
    with tempfile.TemporaryDirectory() as folder:
        entries = round_of(manifest, base, pairs, Path(folder), block=block)
        return dict(mean.average(entries, senders_only=senders_only).tensors(entries.base.layout))


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


@pytest.mark.parametrize("block", [1, 7, 64, 1 << 14])
@pytest.mark.parametrize("density", [0.0, 0.05, 0.6, 1.0])
def test_the_bits_are_those_of_dense_tensors(density: float, block: int) -> None:
    pairs = states_of(4, 5)
    rng = np.random.default_rng(0)
    for _, state in pairs:
        state["conv.weight"][rng.random(state["conv.weight"].shape) >= density] = 0
    assert model_id(average(pairs, block=block)) == model_id(dense_way.average(pairs))
    expected = dense_way.average_nonzero(pairs, ["conv.weight"])
    assert model_id(average(pairs, senders_only=True, block=block)) == model_id(expected)


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
