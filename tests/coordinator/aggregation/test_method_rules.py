"""The next model, checked exactly against the weights that devices sent over three rounds."""

from __future__ import annotations

import itertools
import tempfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from fixtures.dense_way import combine, manifest_of

from sparsyedge.edge.model.methods import Method, make_method
from sparsyedge.edge.tensors import State
from sparsyedge.edge.training.local_update import exchange_weights, finish_update

PRUNABLE = ("a", "b")
SHAPES = {"a": (6, 5), "b": (70,), "bias": (3,)}
SAMPLES = (3, 1, 2)
ROUNDS = 3


def train(start: State, method: Method, *, round_number: int, device: int) -> State:
    """Add noise to the weights that the method lets a device change."""
    rng = np.random.default_rng([round_number, device])
    moved = {name: (value + rng.normal(0, 0.3, value.shape)).astype(np.float32) for name, value in start.items()}
    if method.zero_grad_at_zero:
        for name in PRUNABLE:
            moved[name][start[name] == 0] = 0
    return moved


def record_rounds(method: Method) -> list[tuple[list[tuple[int, State]], State]]:
    """The updates and the model of each round, from a dense start."""
    rng = np.random.default_rng(7)
    model: State = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    history = []
    for number in range(1, ROUNDS + 1):
        updates = []
        for device, samples in enumerate(SAMPLES):
            trained = train(model, method, round_number=number, device=device)
            if method.evolves_mask(number):
                trained = exchange_weights(trained, PRUNABLE, method.regrow_rate, seed=[number, device])
            update = finish_update(method, trained, prunable=PRUNABLE, sparsity=method.sparsity, start=model)
            updates.append((samples, update))
        with tempfile.TemporaryDirectory() as folder:
            manifest = manifest_of(model, method, PRUNABLE)
            model = combine(updates, manifest, model, Path(folder), round_number=number, rounds=ROUNDS)
        history.append((updates, model))
    return history


def exact_mean(updates: list[tuple[int, State]], name: str, *, nonzero: bool = False) -> State:
    """The weighted mean in exact arithmetic, one entry at a time."""
    flat = [(samples, state[name].reshape(-1)) for samples, state in updates]
    result = np.zeros(flat[0][1].size, dtype=np.float32)
    for index in range(result.size):
        terms = [(samples, Fraction(float(values[index]))) for samples, values in flat]
        if nonzero:
            terms = [(samples, value) for samples, value in terms if value != 0]
        total = sum(samples for samples, _ in terms)
        result[index] = float(sum(samples * value for samples, value in terms) / total) if total else 0.0
    return {name: result.reshape(SHAPES[name])}


def count(state: State) -> int:
    return sum(int(np.count_nonzero(state[name])) for name in PRUNABLE)


@pytest.mark.parametrize("name", ["dense", "topk", "sparsyfed", "sparsyfed-no-act"])
def test_the_model_is_the_mean_weighted_by_samples(name: str) -> None:
    method = make_method(name) if name == "dense" else make_method(name, sparsity=0.8)
    for updates, model in record_rounds(method):
        for tensor in SHAPES:
            np.testing.assert_allclose(model[tensor], exact_mean(updates, tensor)[tensor], rtol=1e-6, atol=1e-9)


def test_the_mean_of_sent_values_leaves_out_devices_that_sent_none() -> None:
    method = make_method("topk", sparsity=0.8, aggregation="nonzero-mean")
    for updates, model in record_rounds(method):
        for tensor in PRUNABLE:
            expected = exact_mean(updates, tensor, nonzero=True)[tensor]
            np.testing.assert_allclose(model[tensor], expected, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(model["bias"], exact_mean(updates, "bias")["bias"], rtol=1e-6, atol=1e-9)


def test_with_powers_the_mask_only_shrinks() -> None:
    models = [model for _, model in record_rounds(make_method("sparsyfed", sparsity=0.8))]
    assert count(models[0]) > 20
    for before, after in itertools.pairwise(models):
        assert all(not np.any((after[name] != 0) & (before[name] == 0)) for name in PRUNABLE)


def test_a_fixed_mask_is_made_after_round_one_and_never_changes() -> None:
    models = [model for _, model in record_rounds(make_method("fixed-mask", sparsity=0.8))]
    assert count(models[0]) == 20
    for model in models[1:]:
        assert all(np.array_equal(model[name] != 0, models[0][name] != 0) for name in PRUNABLE)


def test_naive_powers_are_pruned_after_the_last_round_alone() -> None:
    models = [model for _, model in record_rounds(make_method("naive-powerprop", sparsity=0.8))]
    assert [count(model) for model in models] == [100, 100, 20]


def test_pruned_changes_leave_the_model_dense() -> None:
    models = [model for _, model in record_rounds(make_method("sparsyfed", sparsity=0.8, uplink="delta"))]
    assert [count(model) for model in models] == [100, 100, 100]


def layer_counts(updates: list[tuple[int, State]], kept: int) -> dict[str, int]:
    """The devices' average non-zeros of each layer, scaled to the target, in exact arithmetic."""
    means = {
        name: sum(Fraction(samples * int(np.count_nonzero(state[name])), sum(SAMPLES)) for samples, state in updates)
        for name in PRUNABLE
    }
    scale = kept / sum(means.values())
    return {name: int(mean * scale) for name, mean in means.items()}


def largest_of_mean(
    updates: list[tuple[int, State]], name: str, keep: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    mean = np.abs(exact_mean(updates, name)[name].reshape(-1))
    return np.sort(np.argsort(-mean, kind="stable")[:keep])


def test_flash_keeps_the_mean_density_of_each_layer_and_its_mask_for_ever() -> None:
    history = record_rounds(make_method("flash", sparsity=0.8))
    updates, first = history[0]
    counts = layer_counts(updates, kept=20)
    assert 18 <= sum(counts.values()) <= 20
    for name in PRUNABLE:
        assert np.array_equal(np.flatnonzero(first[name]), largest_of_mean(updates, name, counts[name]))
    for _, model in history[1:]:
        assert all(np.array_equal(model[name] != 0, first[name] != 0) for name in PRUNABLE)


def test_jmwst_moves_the_mask_and_keeps_its_size() -> None:
    history = record_rounds(make_method("flash-jmwst", sparsity=0.8))
    masks = [np.concatenate([model[name].reshape(-1) != 0 for name in PRUNABLE]) for _, model in history]
    assert all(18 <= int(mask.sum()) <= 20 for mask in masks)
    assert not np.array_equal(masks[1], masks[2])
    for updates, model in history:
        for name in PRUNABLE:
            kept = int(np.count_nonzero(model[name]))
            assert np.array_equal(np.flatnonzero(model[name]), largest_of_mean(updates, name, kept))


def test_jmwst_moves_the_mask_in_every_so_many_rounds_alone() -> None:
    history = record_rounds(make_method("flash-jmwst", sparsity=0.8, mask_interval=2))
    masks = [np.concatenate([model[name].reshape(-1) != 0 for name in PRUNABLE]) for _, model in history]
    assert np.array_equal(masks[1], masks[2])


@pytest.mark.parametrize("interval", [1, 2])
def test_free_regrowth_is_pruned_by_the_coordinator_in_every_so_many_rounds_alone(interval: int) -> None:
    history = record_rounds(make_method("flash-jmwst", sparsity=0.8, regrowth="free", mask_interval=interval))
    for number, (updates, model) in enumerate(history, start=1):
        counts = layer_counts(updates, kept=20)
        for name in PRUNABLE:
            mean = exact_mean(updates, name)[name]
            expected = np.flatnonzero(mean)
            if (number - 1) % interval == 0:
                expected = largest_of_mean(updates, name, counts[name])
            assert np.array_equal(np.flatnonzero(model[name]), expected)
            np.testing.assert_allclose(model[name].reshape(-1)[expected], mean.reshape(-1)[expected], rtol=1e-6)
    pruned, dense = history[0][1], history[1][0][0][1]
    # A device has grown weights of its own choice, and sends no more of them than its target leaves.
    assert any(np.any((dense[name] != 0) & (pruned[name] == 0)) for name in PRUNABLE)
    assert count(dense) == 20


def test_zerofl_averages_what_was_sent_and_lets_the_mask_move() -> None:
    models = [model for _, model in record_rounds(make_method("zerofl", sparsity=0.8))]
    assert any(np.any((models[2][name] != 0) & (models[0][name] == 0)) for name in PRUNABLE)
