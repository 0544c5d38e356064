"""The rules, compared with dense numpy: how they combine sparse updates when some senders are hostile."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from fixtures.dense_way import average, average_nonzero, round_of
from numpy.typing import NDArray

from sparsyedge.coordinator.aggregation import entry_blocks, rules
from sparsyedge.coordinator.aggregation.rules import RULES, RoundContext, make_rule
from sparsyedge.coordinator.aggregation_config import AggregationConfig
from sparsyedge.edge.config import read_section
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.model.methods import make_method
from sparsyedge.edge.model.prune import prune_global
from sparsyedge.edge.tensors import State, model_id

DEVICES = 7
Dense = NDArray[np.float64]


@pytest.fixture(params=["sparsyfed", "nonzero", "delta", "dense"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@dataclass(frozen=True)
class Around:
    """What a round's updates start from."""

    manifest: Manifest
    base: State
    scratch: Path

    def mean(self, updates: list[tuple[int, State]]) -> State:
        if self.manifest.method.aggregation == "mean":
            return average(updates)
        return average_nonzero(updates, self.manifest.prunable)


@pytest.fixture
def context(kind: str, manifest: Manifest, initial: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Around:
    """A round of one of the methods, with blocks so small that a tensor needs several."""
    monkeypatch.setattr(entry_blocks, "BLOCK_ENTRIES", 100 * DEVICES)
    methods = {
        "sparsyfed": make_method("sparsyfed", sparsity=0.5),
        "nonzero": make_method("sparsyfed", sparsity=0.5, aggregation="nonzero-mean"),
        "delta": make_method("sparsyfed", sparsity=0.5, uplink="delta"),
        "dense": make_method("dense"),
    }
    changed = msgspec.structs.replace(manifest, method=methods[kind])
    return Around(changed, initial, tmp_path / "scratch")


def updates_of(context: Around) -> list[tuple[int, State]]:
    """Make honest updates: the base moved a little and pruned like the method does."""
    updates = []
    for device in range(DEVICES):
        generator = np.random.default_rng(device)
        state = {
            name: (np.abs(tensor) if name == "bn.running_var" else tensor)
            + 0.3 * generator.random(tensor.shape, dtype=np.float32)
            for name, tensor in context.base.items()
        }
        method = context.manifest.method
        if method.uplink == "weights":
            state = prune_global(state, context.manifest.prunable, 0.5)
        elif method.uplink == "delta":
            kept = generator.random(state["fc.weight"].shape) < 0.5
            state["fc.weight"] = np.where(kept, state["fc.weight"], context.base["fc.weight"])
        updates.append((1 + device % 3, state))
    return updates


def run(context: Around, updates: list[tuple[int, State]], rule: str, **options: Any) -> State:
    config = read_section({"rule": rule, **options}, AggregationConfig)
    entries = round_of(context.manifest, context.base, updates, context.scratch)
    found = make_rule(config, context.manifest.method).combine(entries, RoundContext())
    return dict(found.tensors(entries.base.layout))


def stacked(updates: list[tuple[int, State]], name: str) -> tuple[Dense, Dense]:
    """Return the values as (devices, entries), and the weights."""
    values = np.stack([state[name].reshape(-1) for _, state in updates]).astype(np.float64)
    return values, np.array([weight for weight, _ in updates], dtype=np.float64)


def test_the_mean_is_the_plain_one_to_the_bit(context: Around, kind: str) -> None:
    updates = updates_of(context)
    expected = context.mean(updates)
    assert model_id(run(context, updates, "mean")) == model_id(expected)
    if kind == "sparsyfed":
        assert model_id(expected) == model_id(average(updates))


def test_trimmed_is_the_mean_of_what_is_left_of_each_entry(context: Around, kind: str) -> None:
    updates = updates_of(context)
    found = run(context, updates, "trimmed", trim=0.3)
    for name in found:
        values, weights = stacked(updates, name)
        expected = np.zeros(values.shape[1])
        for entry in range(values.shape[1]):
            order = np.argsort(values[:, entry], kind="stable")[2:-2]
            if kind == "nonzero" and name == "fc.weight":
                order = np.array([device for device in order if values[device, entry] != 0], dtype=int)
            if order.size:
                expected[entry] = np.average(values[order, entry], weights=weights[order])
        np.testing.assert_allclose(found[name].reshape(-1), expected, rtol=1e-6, atol=1e-9)


def test_the_median_is_that_of_the_devices_that_keep_an_entry_if_they_are_most(context: Around, kind: str) -> None:
    updates = updates_of(context)
    if kind == "delta":
        with pytest.raises(ConfigError, match=r"makes no sense .*allowed are mean, clipped, trimmed, krum, aligned"):
            run(context, updates, "median")
        return
    found = run(context, updates, "median")
    for name in found:
        values, _ = stacked(updates, name)
        expected = np.zeros(values.shape[1])
        for entry in range(values.shape[1]):
            kept = values[:, entry]
            if name == "fc.weight" and kind != "dense":
                kept = kept[kept != 0]
            if 2 * kept.size > DEVICES:
                expected[entry] = np.median(kept)
        np.testing.assert_allclose(found[name].reshape(-1), expected, rtol=1e-6, atol=1e-9)


def test_krum_is_the_mean_of_the_updates_nearest_to_each_other(context: Around) -> None:
    updates = updates_of(context)
    far = {name: tensor + np.float32(3.0) * (tensor != 0) for name, tensor in updates[2][1].items()}
    updates[2] = (2, far)
    found = run(context, updates, "krum", byzantine=1)
    expected = context.mean([update for device, update in enumerate(updates) if device != 2])
    assert model_id(found) == model_id(expected)


def changes(context: Around, updates: list[tuple[int, State]], name: str) -> Dense:
    """Return each device's change; zero for entries that it pruned."""
    values, _ = stacked(updates, name)
    moved = values - context.base[name].reshape(-1)
    pruned = (values == 0) & (name == "fc.weight") & (context.manifest.method.uplink == "weights")
    return np.where(pruned, 0.0, moved)


def test_krum_chooses_by_the_sums_of_distances(context: Around) -> None:
    updates = updates_of(context)
    trained = [parameter.name for parameter in context.manifest.parameters if parameter.trainable]
    flat = np.concatenate([changes(context, updates, name) for name in trained], axis=1)
    distances = np.square(flat[:, np.newaxis] - flat[np.newaxis]).sum(axis=2)
    scores = np.sort(distances, axis=1)[:, 1 : DEVICES - 2 - 1].sum(axis=1)
    chosen = sorted(np.argsort(scores)[: DEVICES - 2])
    expected = context.mean([updates[device] for device in chosen])
    assert model_id(run(context, updates, "krum", byzantine=2)) == model_id(expected)


@pytest.mark.parametrize("rule", ["trimmed", "median", "krum"])
def test_no_value_of_one_hostile_device_moves_the_model_beyond_the_honest_ones(
    context: Around, kind: str, rule: str
) -> None:
    if (rule, kind) == ("median", "delta"):
        return
    updates = updates_of(context)
    hostile = {name: np.full_like(tensor, 1e30) for name, tensor in updates[0][1].items()}
    found = run(context, [(2, hostile), *updates[1:]], rule)
    for name in found:
        values, _ = stacked(updates[1:], name)
        assert (found[name].reshape(-1) <= np.maximum(values.max(axis=0), 0) + 1e-6).all(), name


def common_changes(context: Around, *, devices: int, turned: int) -> list[tuple[int, State]]:
    """Make updates whose changes share a common part; the last `turned` ones are reversed."""
    shared = np.random.default_rng(0)
    way = {name: shared.standard_normal(tensor.shape) for name, tensor in context.base.items()}
    updates = []
    for device in range(devices):
        generator = np.random.default_rng(100 + device)
        sign = -1 if device >= devices - turned else 1
        state = {
            name: (tensor + sign * 0.01 * (way[name] + generator.standard_normal(tensor.shape))).astype(np.float32)
            for name, tensor in context.base.items()
        }
        if context.manifest.method.uplink == "weights":
            state = prune_global(state, context.manifest.prunable, 0.5)
        updates.append((1, state))
    return updates


def test_aligned_leaves_out_who_goes_against_the_others(context: Around) -> None:
    updates = common_changes(context, devices=DEVICES, turned=2)
    assert model_id(run(context, updates, "aligned")) == model_id(context.mean(updates[:-2]))


def test_in_a_large_round_aligned_compares_with_some_of_the_others(
    context: Around, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "MOST_PEERS", 9)
    updates = common_changes(context, devices=30, turned=4)
    assert model_id(run(context, updates, "aligned")) == model_id(context.mean(updates[:-4]))


def test_aligned_leaves_out_nobody_where_all_are_honest(context: Around) -> None:
    updates = common_changes(context, devices=DEVICES, turned=0)
    assert model_id(run(context, updates, "aligned")) == model_id(context.mean(updates))


def test_of_three_devices_aligned_leaves_out_nobody(context: Around) -> None:
    updates = common_changes(context, devices=3, turned=1)
    assert model_id(run(context, updates, "aligned")) == model_id(context.mean(updates))


def test_an_entry_that_only_trimmed_devices_keep_is_pruned(manifest: Manifest, initial: State, tmp_path: Path) -> None:
    empty = {**initial, "fc.weight": np.zeros_like(initial["fc.weight"])}
    planted = {**initial, "fc.weight": np.ones_like(initial["fc.weight"])}
    context = Around(manifest, initial, tmp_path)
    found = run(context, [(1, empty), (1, planted), *[(1, empty)] * 3], "trimmed")
    assert not found["fc.weight"].any()


@pytest.mark.parametrize("rule", list(RULES))
def test_one_update_is_the_model(context: Around, kind: str, rule: str) -> None:
    if (rule, kind) == ("median", "delta"):
        return
    update = updates_of(context)[0]
    found = run(context, [update], rule)
    for name, tensor in update[1].items():
        np.testing.assert_allclose(found[name], tensor, rtol=1e-6)


def test_devices_of_one_weight_may_come_in_any_order(context: Around) -> None:
    updates = [(1, state) for _, state in updates_of(context)]
    shuffled = random.Random(1).sample(updates, len(updates))
    for rule in ("trimmed", "krum"):
        one, other = run(context, updates, rule), run(context, shuffled, rule)
        for name in one:
            np.testing.assert_allclose(one[name], other[name], rtol=1e-5, atol=1e-7)


def test_nothing_is_left_on_the_disk(context: Around) -> None:
    run(context, updates_of(context), "trimmed")
    assert list(context.scratch.iterdir()) == []
