"""Updates that would move the model too far get their kept entries scaled down."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
import numpy as np
import pytest

from sparsyedge.coordinator.aggregation.norms import Pull, clip, clip_scales, measure, share_left, size_of, trust_of
from sparsyedge.coordinator.model.update_checks import nonzero_budget
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.model.prune import prune_global
from sparsyedge.edge.tensors import State, count_nonzero


def scaled(norms: Mapping[str, float], weights: Mapping[str, int] | None = None) -> dict[str, float]:
    """Return the scale of the only tensor, for each clipped device."""
    found = clip_scales(
        {device: Pull({"w": norm}, 0.0) for device, norm in norms.items()},
        weights or dict.fromkeys(norms, 1),
        size={"w": 1.0},
        factor=10.0,
    )
    return {device: scales["w"] for device, scales in found.items()}


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
    initial: State, manifest: Manifest
) -> None:
    huge = {**initial, "fc.weight": np.full_like(initial["fc.weight"], 3e38)}
    norm = measure(huge, initial, manifest).change["fc.weight"]
    assert math.isfinite(norm)
    bounded = clip(huge, initial, manifest, {"fc.weight": 1 / norm})
    assert measure(bounded, initial, manifest).change["fc.weight"] == pytest.approx(1.0, rel=1e-3)


def test_with_fewer_than_three_updates_nothing_is_clipped() -> None:
    assert scaled({"a": 0.01, "b": 30.0}) == {}


def test_where_nobody_moves_the_model_a_small_step_is_no_attack() -> None:
    assert scaled({"a": 0.0, "b": 0.0, "c": 0.0, "d": 0.009}) == {}
    assert scaled({"a": 0.0, "b": 0.0, "c": 0.0, "d": 0.02}) == pytest.approx({"d": 0.5})


def test_a_clipped_update_has_the_norm_that_it_may_have(initial: State, manifest: Manifest) -> None:
    update = pruned_update(initial, 5.0)
    scales = {"fc.weight": 0.25, "bn.running_var": 0.5}
    before, after = (
        measure(state, initial, manifest).change for state in (update, clip(update, initial, manifest, scales))
    )
    assert after == pytest.approx({name: norm * scales.get(name, 1.0) for name, norm in before.items()}, rel=1e-5)


def test_what_is_left_is_said_of_the_whole_update() -> None:
    assert share_left({"a": 3.0, "b": 4.0}, {}) == 1.0
    assert share_left({"a": 3.0, "b": 4.0}, {"b": 0.0}) == pytest.approx(0.6)
    assert share_left({"a": 0.0}, {}) == 1.0


def test_what_the_device_pruned_stays_zero_and_the_budget_holds_although_the_base_is_dense(
    initial: State, manifest: Manifest
) -> None:
    update = pruned_update(initial, 5.0)
    budget = nonzero_budget(manifest)
    assert count_nonzero(initial, manifest.prunable) > budget
    bounded = clip(update, initial, manifest, dict.fromkeys(initial, 0.1))
    assert count_nonzero(bounded, manifest.prunable) <= budget
    assert (bounded["fc.weight"][update["fc.weight"] == 0] == 0).all()


def test_pruned_entries_do_not_count_as_moved(initial: State, manifest: Manifest) -> None:
    update = prune_global(initial, ["fc.weight"], 0.5)
    assert measure(update, initial, manifest).change["fc.weight"] == 0.0


def test_where_changes_are_pruned_a_zero_is_a_value(initial: State, manifest: Manifest) -> None:
    delta = msgspec.structs.replace(manifest, method=msgspec.structs.replace(manifest.method, uplink="delta"))
    update = {**initial, "fc.weight": initial["fc.weight"].copy()}
    update["fc.weight"][0, :5] = 0
    assert measure(update, initial, delta).change["fc.weight"] > 0
    bounded = clip(update, initial, delta, {"fc.weight": 0.5})["fc.weight"]
    np.testing.assert_allclose(bounded[0, :5], initial["fc.weight"][0, :5] / 2, rtol=1e-6)
    np.testing.assert_array_equal(bounded[1:], initial["fc.weight"][1:])


def test_a_variance_that_is_clipped_towards_the_base_stays_one(initial: State, manifest: Manifest) -> None:
    update = {**initial, "bn.running_var": np.array([0, 1e30, 3e38, 1], dtype=np.float32)}
    bounded = clip(update, initial, manifest, {"bn.running_var": 1e-38})["bn.running_var"]
    assert (bounded >= 0).all()
    assert (bounded < 10).all()


def test_every_tensor_has_a_bound_of_its_own() -> None:
    pulls = {name: Pull({"large": 100.0, "small": 1.0}, 0.0) for name in "abc"}
    pulls["d"] = Pull({"large": 100.0, "small": 40.0}, 0.0)
    size = {"large": 1.0, "small": 1.0}
    assert clip_scales(pulls, dict.fromkeys(pulls, 7), size=size, factor=10.0) == {"d": {"small": 0.25}}


def test_who_prunes_what_the_others_keep_loses_weight(initial: State, manifest: Manifest) -> None:
    base = prune_global(initial, ["fc.weight"], 0.5)
    kept = base["fc.weight"] != 0
    foreign = {**base, "fc.weight": np.where(kept, 0, 1).astype(np.float32)}
    pulls = {
        device: measure(state, base, manifest)
        for device, state in zip("abcd", (base, base, base, foreign), strict=True)
    }
    size = size_of(base)
    assert pulls["d"].pruned == pytest.approx(size["fc.weight"])
    assert pulls["a"].pruned == 0
    trust = trust_of(pulls, dict.fromkeys(pulls, 3), size=size, manifest=manifest, factor=2.0)
    assert trust == pytest.approx({"d": 0.1})


def test_in_round_1_where_everybody_prunes_nobody_loses_weight(initial: State, manifest: Manifest) -> None:
    pulls = {str(seed): measure(pruned_update(initial, 0.1, seed=seed), initial, manifest) for seed in range(5)}
    assert trust_of(pulls, dict.fromkeys(pulls, 3), size=size_of(initial), manifest=manifest, factor=2.0) == {}


def test_a_model_is_measured_tensor_by_tensor(initial: State) -> None:
    found = size_of(initial)
    assert found["fc.weight"] == pytest.approx(float(np.linalg.norm(initial["fc.weight"].astype(np.float64))))
    assert found["bn.running_var"] == 2.0
