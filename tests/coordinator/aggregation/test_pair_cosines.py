"""The mean cosine between pairs of devices, against all pairs compared one by one."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from fixtures.dense_way import manifest_of, round_of
from numpy.typing import NDArray

from sparsyedge.coordinator.aggregation.pair_cosines import mean_pair_cosine
from sparsyedge.edge.model.methods import make_method
from sparsyedge.edge.tensors import State

SHAPES = {"a": (6, 50), "bias": (3,), "b": (700,), "shift": (9,)}
PRUNABLE = ("a", "b")


def draw(seed: int, density: float) -> State:
    rng = np.random.default_rng(seed)
    state: State = {name: (rng.standard_normal(shape) + 0.3).astype(np.float32) for name, shape in SHAPES.items()}
    for name in PRUNABLE:
        state[name][rng.random(SHAPES[name]) >= density] = 0
    return state


def norms_of(states: list[State]) -> NDArray[np.float64]:
    """Weights first, then the other tensors, as updates are measured."""
    names = [*(name for name in SHAPES if name in PRUNABLE), *(name for name in SHAPES if name not in PRUNABLE)]
    return np.array([[np.linalg.norm(state[name].astype(np.float64)) for name in names] for state in states])


def by_pairs(states: list[State]) -> float:
    means = []
    for name in SHAPES:
        vectors = [state[name].astype(np.float64).reshape(-1) for state in states if state[name].any()]
        cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in itertools.combinations(vectors, 2)]
        if cosines:
            means.append(np.mean(cosines))
    return float(np.mean(means))


def by_sum(states: list[State], folder: Path, method: str = "topk") -> float | None:
    manifest = manifest_of(states[0], make_method(method), PRUNABLE)
    entries = round_of(manifest, draw(0, 1.0), [(float(place), each) for place, each in enumerate(states)], folder)
    return mean_pair_cosine(entries, norms_of(states))


@pytest.mark.parametrize(("method", "density"), [("topk", 0.05), ("topk", 0.5), ("dense", 1.0)])
@pytest.mark.parametrize("devices", [2, 7])
def test_one_sum_gives_what_all_pairs_give(method: str, density: float, devices: int, tmp_path: Path) -> None:
    states = [draw(seed, density) for seed in range(1, devices + 1)]
    assert by_sum(states, tmp_path, method) == pytest.approx(by_pairs(states), abs=1e-9)


def test_an_empty_tensor_of_one_device_is_in_no_pair(tmp_path: Path) -> None:
    states = [draw(seed, 0.3) for seed in range(1, 5)]
    states[2]["a"][...] = 0
    assert by_sum(states, tmp_path) == pytest.approx(by_pairs(states), abs=1e-9)


def test_equal_updates_have_cosine_one_whatever_they_weigh(tmp_path: Path) -> None:
    state = draw(1, 0.3)
    assert by_sum([state, state, state], tmp_path) == pytest.approx(1.0, abs=1e-9)


def test_there_is_no_pair_where_one_device_alone_kept_anything(tmp_path: Path) -> None:
    nothing: State = {name: np.zeros(shape, dtype=np.float32) for name, shape in SHAPES.items()}
    assert by_sum([draw(1, 0.3), nothing], tmp_path) is None
