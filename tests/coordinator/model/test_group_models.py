"""The models of groups with targets of their own: pruned anew in every round, or under a mask made once."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.model.global_model import GlobalModel
from sparsyedge.coordinator.model.group_models import first_masks, group_states
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.methods import make_method
from sparsyedge.edge.model.prune import prune_global
from sparsyedge.edge.tensors import State, model_id
from sparsyedge.edge.wire.frame import decode_frame

WEIGHT = ("fc.weight",)
TARGETS = (0.9, 0.6)


def with_method(artifacts: Artifacts, name: str) -> Artifacts:
    method = make_method(name, sparsities=TARGETS, shares=(1, 1), download="own")
    return Artifacts(artifacts.directory, msgspec.structs.replace(artifacts.manifest, method=method))


def open_model(artifacts: Artifacts, initial: State, folder: Path, round_number: int = 1) -> GlobalModel:
    config = RunConfig(name="r", artifacts="-", run_dir=str(folder), dataset="-", rounds=9, cohort_size=2)
    return GlobalModel(config, artifacts, initial, round_number=round_number)


def moved(state: State, seed: int) -> State:
    rng = np.random.default_rng(seed)
    return {
        name: (each + rng.standard_normal(each.shape) * (each != 0)).astype(np.float32) for name, each in state.items()
    }


def advance(model: GlobalModel, state: State, round_number: int) -> None:
    model.present(model.next_version(prune_global(state, WEIGHT, min(TARGETS)), round_number=round_number))


def test_the_checkpoint_is_the_same_for_all(artifacts: Artifacts, initial: State, tmp_path: Path) -> None:
    assert open_model(with_method(artifacts, "sparsyfed"), initial, tmp_path / "run").groups == ()


@pytest.mark.parametrize("name", ["sparsyfed", "flash"])
def test_each_group_gets_a_frame_of_its_own_size(
    name: str, artifacts: Artifacts, initial: State, tmp_path: Path
) -> None:
    model = open_model(with_method(artifacts, name), initial, tmp_path / "run")
    advance(model, initial, 2)
    for group in model.groups:
        state = decode_frame(group.frame, artifacts.manifest.shapes).state
        assert model_id(state) == group.id
        expected = prune_global(model.state, WEIGHT, group.sparsity)
        assert all(np.array_equal(state[tensor], expected[tensor]) for tensor in state)
    lower, higher = model.groups
    assert (lower.sparsity, higher.sparsity) == (0.6, 0.9)
    assert higher.nonzeros < lower.nonzeros
    assert higher.blob.bytes < lower.blob.bytes <= model.blob.bytes
    # The last number of a name, modulo the shares, decides the group.
    assert model.nonzeros_for(("d0",)) == higher.nonzeros
    assert model.nonzeros_for(("d0", "d1")) == (higher.nonzeros + lower.nonzeros) / 2


def masks_of(model: GlobalModel, artifacts: Artifacts) -> list[list[bool]]:
    states = [decode_frame(group.frame, artifacts.manifest.shapes).state for group in model.groups]
    return [(state[WEIGHT[0]] != 0).reshape(-1).tolist() for state in states]


@pytest.mark.parametrize(("name", "stays"), [("flash", True), ("fixed-mask", True), ("sparsyfed", False)])
def test_a_fixed_mask_is_made_once_and_survives_a_restart(
    name: str, stays: bool, artifacts: Artifacts, initial: State, tmp_path: Path
) -> None:
    grouped = with_method(artifacts, name)
    model = open_model(grouped, initial, tmp_path / "run")
    advance(model, initial, 2)
    first = masks_of(model, artifacts)
    model = open_model(grouped, initial, tmp_path / "run", round_number=2)
    advance(model, moved(dict(model.state), 3), 3)
    assert (masks_of(model, artifacts) == first) is stays


def test_without_the_option_there_is_one_model_for_all(artifacts: Artifacts, initial: State, tmp_path: Path) -> None:
    model = open_model(artifacts, initial, tmp_path / "run")
    advance(model, initial, 2)
    assert list(model.groups) == []
    assert model.nonzeros_for(("d0", "d1")) == model.nonzeros


def test_masks_that_move_are_pruned_from_the_present_model(artifacts: Artifacts, initial: State) -> None:
    manifest = with_method(artifacts, "topk").manifest
    assert first_masks(manifest, initial) == b""
    for target, state in group_states(manifest, initial):
        assert np.array_equal(state[WEIGHT[0]], prune_global(initial, WEIGHT, target)[WEIGHT[0]])
