"""Updates that would move the model too far get their kept entries scaled down."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from fixtures import dense_way
from fixtures.dense_way import change_norms, round_of

from sparsyedge.coordinator.aggregation.measures import Measures, measure, pruned_exactly
from sparsyedge.coordinator.aggregation.norms import clip_scales, share_left, trust_of
from sparsyedge.coordinator.aggregation.round_base import RoundBase, layout_of
from sparsyedge.coordinator.model.update_checks import nonzero_budget
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.model.prune import prune_global
from sparsyedge.edge.tensors import State, count_nonzero
from sparsyedge.edge.wire.flat_frame import flatten


def scaled(norms: dict[str, float], weights: dict[str, int] | None = None) -> dict[str, float]:
    """Return the scale of the only tensor, for each clipped device."""
    counts = np.array([(weights or {}).get(device, 1) for device in norms], dtype=np.float64)
    changes = np.array([[norm] for norm in norms.values()])
    found = clip_scales(changes, counts, size=np.array([1.0]), factor=10.0)[:, 0]
    return {device: float(scale) for device, scale in zip(norms, found, strict=True) if scale != 1}


def measured(update: State, base: State, manifest: Manifest) -> tuple[Measures, RoundBase]:
    start = RoundBase(manifest, layout_of(manifest), base)
    flat = start.whole(flatten(update, start.layout))
    near = start.near(flat)
    return measure(flat, start, start.products(flat, near)[0], near), start


def changes_of(update: State, base: State, manifest: Manifest) -> dict[str, float]:
    found, start = measured(update, base, manifest)
    names = (*start.layout.weights, *start.layout.others)
    return dict(zip(names, found.change.tolist(), strict=True))


def clip(update: State, base: State, manifest: Manifest, scales: dict[str, float], folder: Path) -> State:
    """The update as the coordinator reads it back, clipped."""
    entries = round_of(manifest, base, [(1, update)], folder, scales={0: scales})
    (member,) = entries.members
    listed = entries.entries(member, 0, entries.blocks)
    flat = flatten(update, entries.base.layout)
    others = flat.others.copy()
    others[entries.moving] = entries.others(member)
    return dict(type(flat)(listed.positions, listed.values, others, 0).tensors(entries.base.layout))


def pruned_update(initial: State, distance: float, *, seed: int = 3) -> State:
    """Make an update of round 1 from the dense initial model: moved by `distance` and pruned to the budget."""
    generator = np.random.default_rng(seed)
    moved = {
        name: np.abs(tensor + distance * generator.standard_normal(tensor.shape)).astype(np.float32)
        for name, tensor in initial.items()
    }
    return prune_global(moved, ["fc.weight"], 0.5)


def test_an_update_beyond_the_bound_is_scaled_to_it() -> None:
    assert scaled({"a": 1.0, "b": 1.2, "c": 0.8, "d": 50.0, "e": 10.9}) == pytest.approx({"d": 12 / 50})


def test_what_counts_is_the_norm_times_the_weight() -> None:
    norms = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 8.0}
    assert scaled(norms) == {}
    assert scaled(norms, {"a": 100, "b": 100, "c": 100, "d": 200}) == pytest.approx({"d": 1000 / 1600})


def test_an_update_of_values_near_the_end_of_float32_is_clipped_like_any_other(
    initial: State, manifest: Manifest, tmp_path: Path
) -> None:
    huge = {**initial, "fc.weight": np.full_like(initial["fc.weight"], 3e38)}
    norm = changes_of(huge, initial, manifest)["fc.weight"]
    assert math.isfinite(norm)
    bounded = clip(huge, initial, manifest, {"fc.weight": 1 / norm}, tmp_path)
    assert changes_of(bounded, initial, manifest)["fc.weight"] == pytest.approx(1.0, rel=1e-3)


def test_with_fewer_than_three_updates_nothing_is_clipped() -> None:
    assert scaled({"a": 0.01, "b": 30.0}) == {}


def test_where_nobody_moves_the_model_a_small_step_is_no_attack() -> None:
    assert scaled({"a": 0.0, "b": 0.0, "c": 0.0, "d": 0.009}) == {}
    assert scaled({"a": 0.0, "b": 0.0, "c": 0.0, "d": 0.02}) == pytest.approx({"d": 0.5})


@pytest.mark.parametrize("uplink", ["weights", "delta"])
def test_norms_and_clipped_updates_are_those_of_dense_tensors_to_the_bit(
    uplink: str, initial: State, manifest: Manifest, tmp_path: Path
) -> None:
    changed = msgspec.structs.replace(manifest, method=msgspec.structs.replace(manifest.method, uplink=uplink))
    update, scales = pruned_update(initial, 5.0), {"fc.weight": 0.25, "bn.running_var": 0.5}
    update["fc.weight"][0, :3] = -0.0
    assert changes_of(update, initial, changed) == change_norms(update, initial, changed)
    dense = dense_way.clip(update, initial, changed, scales)
    found = clip(update, initial, changed, scales, tmp_path)
    assert all(np.array_equal(found[name], dense[name]) for name in dense)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_pruned_is_found_to_ten_digits_and_to_the_bit_if_asked(
    seed: int, initial: State, manifest: Manifest
) -> None:
    update = pruned_update(initial, 0.1, seed=seed)
    found, base = measured(update, initial, manifest)
    expected = dense_way.pruned_norm(update, initial, manifest.prunable)
    assert found.pruned == pytest.approx(expected, rel=1e-10)
    assert pruned_exactly(flatten(update, base.layout), base) == expected


def test_a_clipped_update_has_the_norm_that_it_may_have(initial: State, manifest: Manifest, tmp_path: Path) -> None:
    update = pruned_update(initial, 5.0)
    scales = {"fc.weight": 0.25, "bn.running_var": 0.5}
    clipped = clip(update, initial, manifest, scales, tmp_path)
    before, after = (changes_of(state, initial, manifest) for state in (update, clipped))
    assert after == pytest.approx({name: norm * scales.get(name, 1.0) for name, norm in before.items()}, rel=1e-5)


def test_what_is_left_is_said_of_the_whole_update() -> None:
    norms = np.array([3.0, 4.0])
    assert share_left(norms, np.ones(2)) == 1.0
    assert share_left(norms, np.array([1.0, 0.0])) == pytest.approx(0.6)
    assert share_left(np.zeros(1), np.ones(1)) == 1.0


def test_what_the_device_pruned_stays_zero_and_the_budget_holds_although_the_base_is_dense(
    initial: State, manifest: Manifest, tmp_path: Path
) -> None:
    update = pruned_update(initial, 5.0)
    budget = nonzero_budget(manifest)
    assert count_nonzero(initial, manifest.prunable) > budget
    bounded = clip(update, initial, manifest, dict.fromkeys(initial, 0.1), tmp_path)
    assert count_nonzero(bounded, manifest.prunable) <= budget
    assert (bounded["fc.weight"][update["fc.weight"] == 0] == 0).all()


def test_pruned_entries_do_not_count_as_moved(initial: State, manifest: Manifest) -> None:
    update = prune_global(initial, ["fc.weight"], 0.5)
    assert changes_of(update, initial, manifest)["fc.weight"] == 0.0


def test_where_changes_are_pruned_a_zero_is_a_value(initial: State, manifest: Manifest, tmp_path: Path) -> None:
    delta = msgspec.structs.replace(manifest, method=msgspec.structs.replace(manifest.method, uplink="delta"))
    update = {**initial, "fc.weight": initial["fc.weight"].copy()}
    update["fc.weight"][0, :5] = 0
    assert changes_of(update, initial, delta)["fc.weight"] > 0
    bounded = clip(update, initial, delta, {"fc.weight": 0.5}, tmp_path)["fc.weight"]
    np.testing.assert_allclose(bounded[0, :5], initial["fc.weight"][0, :5] / 2, rtol=1e-6)
    np.testing.assert_array_equal(bounded[1:], initial["fc.weight"][1:])


def test_a_variance_that_is_clipped_towards_the_base_stays_one(
    initial: State, manifest: Manifest, tmp_path: Path
) -> None:
    update = {**initial, "bn.running_var": np.array([0, 1e30, 3e38, 1], dtype=np.float32)}
    bounded = clip(update, initial, manifest, {"bn.running_var": 1e-38}, tmp_path)["bn.running_var"]
    assert (bounded >= 0).all()
    assert (bounded < 10).all()


def test_every_tensor_has_a_bound_of_its_own() -> None:
    changes = np.array([[100.0, 1.0], [100.0, 1.0], [100.0, 1.0], [100.0, 40.0]])
    found = clip_scales(changes, np.full(4, 7.0), size=np.ones(2), factor=10.0)
    assert found[3, 1] == 0.25
    assert found.sum() == 7.25


def test_who_prunes_what_the_others_keep_loses_weight(initial: State, manifest: Manifest) -> None:
    base = prune_global(initial, ["fc.weight"], 0.5)
    kept = base["fc.weight"] != 0
    foreign = {**base, "fc.weight": np.where(kept, 0, 1).astype(np.float32)}
    pruned = np.array([measured(state, base, manifest)[0].pruned for state in (base, base, base, foreign)])
    size = float(np.linalg.norm(base["fc.weight"].astype(np.float64)))
    assert pruned[3] == pytest.approx(size)
    assert pruned[0] == pytest.approx(0, abs=1e-6)
    assert trust_of(pruned, np.full(4, 3.0), size=size, factor=2.0) == pytest.approx([1, 1, 1, 0.1])


def test_in_round_1_where_everybody_prunes_nobody_loses_weight(initial: State, manifest: Manifest) -> None:
    updates = [pruned_update(initial, 0.1, seed=seed) for seed in range(5)]
    pruned = np.array([measured(update, initial, manifest)[0].pruned for update in updates])
    size = float(np.linalg.norm(initial["fc.weight"].astype(np.float64)))
    assert (trust_of(pruned, np.full(5, 3.0), size=size, factor=2.0) == 1).all()


def test_a_model_is_measured_tensor_by_tensor(initial: State, manifest: Manifest) -> None:
    base = RoundBase(manifest, layout_of(manifest), initial)
    found = dict(zip((*base.layout.weights, *base.layout.others), np.sqrt(base.squares), strict=True))
    assert found["fc.weight"] == pytest.approx(float(np.linalg.norm(initial["fc.weight"].astype(np.float64))))
    assert found["bn.running_var"] == 2.0
