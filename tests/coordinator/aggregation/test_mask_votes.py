"""The mask that votes come to: against a count in plain Python, with ties, and whatever devices send as values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fixtures.dense_way import combine, manifest_of

from sparsyedge.coordinator.aggregation.update_checks import entry_budget, max_update_bytes
from sparsyedge.edge.model.allocation import erk_counts
from sparsyedge.edge.model.methods import make_method
from sparsyedge.edge.model.prune import removed_count
from sparsyedge.edge.tensors import State

PRUNABLE = ["a.weight", "b.weight"]
SHAPES = {"a.weight": (8, 4, 3, 3), "b.weight": (10, 8)}


def make_state(seed: int) -> State:
    rng = np.random.default_rng(seed)
    state = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in SHAPES.items()}
    return state | {"b.bias": rng.standard_normal(10, dtype=np.float32)}


def ballot(base: State, seed: int, share: float) -> State:
    """An update that keeps a share of the base's weights, drawn at random."""
    rng = np.random.default_rng(seed)
    return base | {name: base[name] * (rng.random(base[name].shape) < share) for name in PRUNABLE}


def voted(updates: list[tuple[float, State]], base: State, folder: Path, **options: object) -> State:
    method = make_method("sparsyfed", start="saliency", **options)
    return combine(updates, manifest_of(base, method, PRUNABLE), base, folder, round_number=1, rounds=5)


@pytest.mark.parametrize("allocation", ["global", "erk"])
def test_the_most_voted_weights_stay_and_keep_their_values(allocation: str, tmp_path: Path) -> None:
    base = make_state(0)
    updates = [(float(10 + seed), ballot(base, seed, 0.2)) for seed in range(1, 6)]
    found = voted(updates, base, tmp_path, sparsity=0.9, allocation=allocation)
    places = [(name, place) for name in PRUNABLE for place in range(base[name].size)]

    def rank(at: tuple[str, int]) -> tuple[float, float]:
        name, place = at
        count = sum(weight for weight, update in updates if update[name].reshape(-1)[place])
        return count, abs(float(base[name].reshape(-1)[place]))

    size = len(places)
    groups = (
        [(places, size - removed_count(size, 0.9))]
        if allocation == "global"
        else [([at for at in places if at[0] == name], count) for name, count in erk_counts(SHAPES, 0.9).items()]
    )
    kept = {at for group, count in groups for at in sorted(group, key=rank, reverse=True)[:count] if rank(at)[0]}
    for name, place in places:
        value = base[name].reshape(-1)[place] if (name, place) in kept else 0
        assert found[name].reshape(-1)[place] == value
    np.testing.assert_array_equal(found["b.bias"], base["b.bias"])


def test_values_that_devices_send_do_not_matter(tmp_path: Path) -> None:
    base = make_state(0)
    honest = [(1.0, ballot(base, seed, 0.1)) for seed in range(3)]
    (tmp_path / "hostile").mkdir()
    loud = [(weight, {name: 1e6 * tensor for name, tensor in update.items()}) for weight, update in honest]
    first = voted(honest, base, tmp_path, sparsity=0.9)
    second = voted(loud, base, tmp_path / "hostile", sparsity=0.9)
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_fewer_votes_than_the_budget_leave_fewer_weights(tmp_path: Path) -> None:
    base = make_state(0)
    update = ballot(base, 1, 0.02)
    found = voted([(5.0, update)], base, tmp_path, sparsity=0.9)
    assert all(np.array_equal(found[name], update[name]) for name in PRUNABLE)


def test_a_weight_that_the_model_does_not_have_gets_no_vote(tmp_path: Path) -> None:
    base = make_state(0)
    base["b.weight"][:] = 0
    update = base | {"b.weight": np.ones(SHAPES["b.weight"], np.float32)}
    found = voted([(5.0, update)], base, tmp_path, sparsity=0.0)
    assert not found["b.weight"].any()
    np.testing.assert_array_equal(found["a.weight"], base["a.weight"])


def regrow(
    updates: list[tuple[float, State]], base: State, folder: Path, *, round_number: int = 2, rounds: int = 5
) -> State:
    method = make_method("sparsyfed", sparsity=0.5, regrow_every=2)
    manifest = manifest_of(base, method, ["w"])
    return combine(updates, manifest, base, folder, round_number=round_number, rounds=rounds)


BASE: State = {"w": np.array([[5, -4, 3, 2, 1], [0, 0, 0, 0, 0]], np.float32)}


def with_votes(**votes: float) -> State:
    """The base with votes at these positions of its second row."""
    state = {"w": BASE["w"].copy()}
    for name, value in votes.items():
        state["w"][1, int(name.removeprefix("at"))] = value
    return state


def test_the_smallest_weights_give_way_to_the_zeros_that_most_agree_on(tmp_path: Path) -> None:
    updates = [(1.0, with_votes(at0=2, at1=-2)), (1.0, with_votes(at0=-2, at1=-2)), (1.0, with_votes(at3=2))]
    found = regrow(updates, BASE, tmp_path)
    # A fifth of five; position 0's votes cancel out, and the new weight has the size of the smallest that stays.
    np.testing.assert_array_equal(found["w"], [[5, -4, 3, 2, 0], [0, -2, 0, 0, 0]])


@pytest.mark.parametrize(("round_number", "rounds"), [(2, 2), (4, 4)])
def test_nothing_is_swapped_after_the_last_round(round_number: int, rounds: int, tmp_path: Path) -> None:
    found = regrow([(1.0, with_votes(at1=2))], BASE, tmp_path, round_number=round_number, rounds=rounds)
    np.testing.assert_array_equal(found["w"], BASE["w"])


def test_without_votes_the_mask_stays(tmp_path: Path) -> None:
    np.testing.assert_array_equal(regrow([(1.0, with_votes())], BASE, tmp_path)["w"], BASE["w"])


@pytest.mark.parametrize("seed", range(5))
def test_a_moving_mask_is_never_denser_than_the_target(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    # The masks of devices differ, so their union is above the target, as after round 1.
    base: State = {"w": rng.standard_normal((20, 10), dtype=np.float32) * (rng.random((20, 10)) < 0.7)}
    updates = [(1.0, {"w": base["w"] + rng.choice([0, 0.5, -0.5], (20, 10), p=[0.8, 0.1, 0.1])}) for _ in range(4)]
    updates = [(weight, {"w": state["w"].astype(np.float32)}) for weight, state in updates]
    found = regrow(updates, base, tmp_path)["w"]
    assert np.count_nonzero(found) == 100
    assert np.count_nonzero((found != 0) & (base["w"] == 0)) == 20


def test_a_round_that_moves_the_mask_has_room_for_its_votes_and_no_more(tmp_path: Path) -> None:
    method = make_method("sparsyfed", sparsity=0.5, regrow_every=2)
    manifest = manifest_of(BASE, method, ["w"])
    assert [entry_budget(manifest, number) for number in (1, 2, 3, 4)] == [5, 6, 5, 5]
    assert max_update_bytes(manifest) > max_update_bytes(
        manifest_of(BASE, make_method("sparsyfed", sparsity=0.5), ["w"])
    )
