"""The allocation of a budget over layers: counts against slow references, ties, and what it leaves alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.allocation import erk_counts, prune_model
from sparsyedge.edge.model.methods import METHODS, make_method
from sparsyedge.edge.model.prune import prune_global, removed_count
from sparsyedge.edge.tensors import FloatArray, State, count_nonzero

# Of 16 bits, so that many are equal.
WEIGHTS = hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(-2, 2, width=16))
NAMES = ["a", "b", "c"]
SHAPES = {"first": (16, 3, 3, 3), "middle": (32, 16, 3, 3), "last": (10, 32)}


def lamp_reference(state: State, positions: dict[str, int], price: float, sparsity: float) -> dict[str, int]:
    """How many weights each layer keeps, from the score of every single weight; of equal ones the first layers lose."""
    scored = []
    for name in NAMES:
        for weight in state[name].tolist():
            at_least = sum(other**2 for other in state[name].tolist() if abs(other) >= abs(weight))
            if weight:
                scored.append((weight**2 / at_least / positions[name] ** price, name))
    scored.sort()
    size = sum(state[name].size for name in NAMES)
    kept = [name for _, name in scored[max(0, len(scored) - (size - removed_count(size, sparsity))) :]]
    return {name: kept.count(name) for name in NAMES}


@given(a=WEIGHTS, b=WEIGHTS, c=WEIGHTS, sparsity=st.floats(0, 0.99), price=st.sampled_from([0.0, 1.0, 2.0]))
def test_lamp_keeps_the_highest_scores(
    a: FloatArray, b: FloatArray, c: FloatArray, sparsity: float, price: float
) -> None:
    state = {"a": a, "b": b, "c": c}
    positions = {"a": 16, "b": 4, "c": 1}
    method = make_method("sparsyfed", allocation="lamp", allocation_price=price)
    pruned = prune_model(method, state, NAMES, sparsity, positions=positions)
    counts = {name: count_nonzero(pruned, [name]) for name in NAMES}
    # Sums that round differently may tell scores apart that are equal elsewhere: by one weight, never more.
    reference = lamp_reference(state, positions, price, sparsity)
    assert sum(counts.values()) == sum(reference.values())
    assert max(abs(counts[name] - reference[name]) for name in NAMES) <= 1
    for name in NAMES:
        kept = pruned[name] != 0
        assert np.array_equal(pruned[name][kept], state[name][kept])
        if kept.any() and not kept.all():
            assert np.abs(state[name][kept]).min() >= np.abs(state[name][~kept]).max()


def test_lamp_leaves_weights_to_a_layer_that_a_global_ranking_empties() -> None:
    state = {"small": np.linspace(0.1, 0.2, 10, dtype=np.float32), "large": np.linspace(1, 2, 10, dtype=np.float32)}
    assert count_nonzero(prune_global(state, ["small", "large"], 0.5), ["small"]) == 0
    pruned = prune_model(make_method("sparsyfed", allocation="lamp"), state, ["small", "large"], 0.5)
    assert [count_nonzero(pruned, [name]) for name in ("small", "large")] == [5, 5]


@pytest.mark.parametrize(("price", "kept"), [(0.0, [5, 5]), (0.5, [3, 7]), (1.0, [1, 9])])
def test_the_higher_the_price_the_fewer_weights_at_many_positions(price: float, kept: list[int]) -> None:
    state = {name: np.linspace(0.5, 1, 10, dtype=np.float32) for name in ("early", "late")}
    method = make_method("sparsyfed", allocation="lamp", allocation_price=price)
    pruned = prune_model(method, state, ["early", "late"], 0.5, positions={"early": 16, "late": 1})
    assert [count_nonzero(pruned, [name]) for name in ("early", "late")] == kept


def test_a_price_without_positions_is_a_bug_of_the_caller() -> None:
    method = make_method("sparsyfed", allocation="lamp", allocation_price=0.25)
    with pytest.raises(ValueError, match="positions"):
        prune_model(method, {"a": np.ones(4, np.float32)}, ["a"], 0.5)


def test_of_equal_weights_the_first_in_order_go() -> None:
    state: State = {"a": np.array([1, -1, 1, -1], np.float32), "b": np.array([1, 1], np.float32)}
    pruned = prune_model(make_method("sparsyfed", allocation="lamp"), state, ["a", "b"], 0.5)
    np.testing.assert_array_equal(pruned["a"], [0, 0, 0, -1])
    np.testing.assert_array_equal(pruned["b"], [1, 1])


def test_erk_prunes_each_layer_to_its_share() -> None:
    rng = np.random.default_rng(1)
    state: State = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in SHAPES.items()}
    state["bias"] = np.array([0.01], np.float32)
    pruned = prune_model(make_method("sparsyfed", allocation="erk"), state, list(SHAPES), 0.9)
    counts = erk_counts(SHAPES, 0.9)
    assert {name: count_nonzero(pruned, [name]) for name in SHAPES} == counts
    assert pruned["bias"] is state["bias"]
    for name in SHAPES:
        kept = np.sort(np.abs(state[name]), axis=None)[::-1][: counts[name]]
        np.testing.assert_array_equal(np.sort(np.abs(pruned[name][pruned[name] != 0]))[::-1], kept)


@pytest.mark.parametrize("allocation", ["erk", "lamp"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_state_that_is_not_finite_stays_as_it_is_so_that_the_caller_sees_it(allocation: str, bad: float) -> None:
    state: State = {"a": np.array([1, bad, 2, 3], np.float32)}
    pruned = prune_model(make_method("sparsyfed", allocation=allocation), state, ["a"], 0.5)
    np.testing.assert_array_equal(pruned["a"], state["a"])


@pytest.mark.parametrize("allocation", ["erk", "lamp"])
def test_a_layer_without_weights_and_a_budget_of_nothing(allocation: str) -> None:
    state: State = {"a": np.zeros((2, 2), np.float32), "b": np.ones((2, 2), np.float32)}
    method = make_method("sparsyfed", allocation=allocation)
    pruned = prune_model(method, state, ["a", "b"], 0.5)
    assert count_nonzero(pruned, ["a"]) == 0
    assert count_nonzero(pruned, ["b"]) == (4 if allocation == "lamp" else 2)
    assert count_nonzero(prune_model(method, state, ["a", "b"], 0.99), ["a", "b"]) == 0


def test_what_is_global_says_nothing_to_devices_that_know_no_other() -> None:
    stated = make_method("sparsyfed", allocation="global", allocation_price=0)
    assert stated == make_method("sparsyfed")


def test_every_method_that_prunes_takes_an_allocation() -> None:
    takes = {name for name, row in METHODS.items() if "allocation" in row.options}
    assert takes == {name for name, row in METHODS.items() if "sparsity" in row.options} == set(METHODS) - {"dense"}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"allocation": "lam"}, "key `allocation` has value 'lam': .*allowed: erk, global, lamp"),
        ({"allocation": "lamp", "allocation_price": 0.3}, "key `allocation_price` has value 0.3: .*steps of 0.25"),
        ({"allocation": "lamp", "allocation_price": -1}, "key `allocation_price` has value -1: .*at least 0"),
        ({"allocation": "erk", "allocation_price": 0.5}, "`method.allocation_price` has value 0.5: .*no scores"),
        ({"allocation_price": 0.5}, "`method.allocation_price` has value 0.5: with `method.allocation` = 'global'"),
        ({"allocation": "erk", "uplink": "delta"}, "`method.allocation` has value 'erk': .*'delta'.*remove one"),
    ],
)
def test_an_allocation_that_makes_no_sense_is_refused(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make_method("sparsyfed", **options)


def test_a_layer_s_density_follows_the_sum_over_the_product_of_its_dimensions() -> None:
    shapes = {"small": (10, 20), "large": (100, 200)}
    counts = erk_counts(shapes, 0.95)
    assert sum(counts.values()) == round(0.05 * 20_200)
    densities = {name: counts[name] / np.prod(shape) for name, shape in shapes.items()}
    # 30 / 200 against 300 / 20,000.
    assert densities["small"] / densities["large"] == pytest.approx(10, rel=0.02)


def test_a_layer_that_is_full_leaves_the_rest_to_the_others() -> None:
    counts = erk_counts({"tiny": (2, 2), "large": (100, 100), "other": (100, 100)}, 0.9)
    assert counts["tiny"] == 4
    assert counts["large"] + counts["other"] == 20_004 - round(0.9 * 20_004) - 4
    assert abs(counts["large"] - counts["other"]) <= 1


@pytest.mark.parametrize("sparsity", [0.5, 0.9, 0.99, 0.999])
def test_the_budget_is_met_to_the_last_weight(sparsity: float) -> None:
    shapes = {f"layer{index}": (7 * index + 3, 11, 3, 3) for index in range(9)}
    total = sum(int(np.prod(shape)) for shape in shapes.values())
    counts = erk_counts(shapes, sparsity)
    assert sum(counts.values()) == total - round(sparsity * total)
    assert all(0 <= counts[name] <= np.prod(shape) for name, shape in shapes.items())
