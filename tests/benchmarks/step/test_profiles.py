"""Profiles: the right number of zeros in the right layers, and files that are refused with a reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sparsyedge.benchmarks.step.profiles import PROFILES, global_sparsity, mask, profile_state, sparsity_of
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.tensors import State, model_id
from sparsyedge.edge.wire.frame import frame_of
from sparsyedge.export.model_spec import ModelSpec
from sparsyedge.export.models import MODELS, prunable_names


@pytest.fixture
def initial(tiny: Artifacts) -> State:
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape, dtype=np.float32) + 10 for name, shape in tiny.manifest.shapes.items()}


@pytest.mark.parametrize("profile", PROFILES)
def test_every_layer_gets_the_nearest_number_of_zeros(tiny: Artifacts, initial: State, profile: str) -> None:
    state = profile_state(profile, initial, tiny.manifest.prunable, seed=0)
    for name, tensor in state.items():
        share = sparsity_of(name, PROFILES[profile]) if name in tiny.manifest.prunable else 0.0
        assert np.count_nonzero(tensor == 0) == round(share * tensor.size)
        assert np.array_equal(tensor[tensor != 0], initial[name][tensor != 0])


@pytest.mark.parametrize(
    ("profile", "expected"),
    [("trained95", 0.9495), ("paperlike", 0.951), ("uniform90", 0.90), ("uniform95", 0.95), ("uniform99", 0.99)],
)
def test_a_model_of_width_64_has_the_published_share_of_zeros(profile: str, expected: float) -> None:
    with torch.device("meta"):
        model = MODELS["resnet18"](ModelSpec("resnet18", 64, 10, (3, 32, 32)))
    sizes = {name: p.numel() for name, p in model.named_parameters() if name in prunable_names(model)}
    zeros = sum(sparsity_of(name, PROFILES[profile]) * size for name, size in sizes.items())
    assert zeros / sum(sizes.values()) == pytest.approx(expected, abs=2e-3)


def test_uniform_profiles_leave_the_first_and_the_last_layer_dense() -> None:
    for profile in ("uniform90", "uniform95", "uniform99"):
        assert sparsity_of("conv1.weight", PROFILES[profile]) == sparsity_of("fc.weight", PROFILES[profile]) == 0


def test_the_seed_decides_where_the_zeros_are(tiny: Artifacts, initial: State) -> None:
    profile, prunable = PROFILES["uniform90"], tiny.manifest.prunable
    first, again, other = (mask(initial, prunable, profile, seed=seed) for seed in (1, 1, 2))
    name = "layer2.0.conv1.weight"
    assert np.array_equal(first[name], again[name])
    assert not np.array_equal(first[name], other[name])


def test_a_file_brings_its_own_weights(tiny: Artifacts, initial: State, tmp_path: Path) -> None:
    masked = mask(initial, tiny.manifest.prunable, PROFILES["uniform95"], seed=5)
    path = _write(tmp_path / "trained.npz", masked)
    state = profile_state(str(path), initial, tiny.manifest.prunable, seed=0)
    assert all(np.array_equal(state[name], masked[name]) for name in initial)
    assert global_sparsity(state, tiny.manifest.prunable) == global_sparsity(masked, tiny.manifest.prunable) > 0.9


def test_a_file_without_all_tensors_is_refused_with_the_first_missing_one(initial: State, tmp_path: Path) -> None:
    path = _write(tmp_path / "half.npz", {name: tensor for name, tensor in initial.items() if name != "fc.weight"})
    with pytest.raises(ConfigError, match=r"lacks 1 of 102 tensors, the first is cur/fc\.weight"):
        profile_state(str(path), initial, [], seed=0)


def test_a_file_of_another_width_is_refused(initial: State, tmp_path: Path) -> None:
    path = _write(tmp_path / "wide.npz", {**initial, "bn1.weight": np.ones(8, dtype=np.float32)})
    with pytest.raises(ConfigError, match=r"cur/bn1\.weight of shape \(8,\), the model has \(4,\); give the --width"):
        profile_state(str(path), initial, [], seed=0)


def test_a_finished_run_and_its_frame_bring_the_trained_model(tiny: Artifacts, initial: State, tmp_path: Path) -> None:
    prunable = tiny.manifest.prunable
    masked = mask(initial, prunable, PROFILES["uniform95"], seed=5)
    path = tmp_path / "model.frame"
    path.write_bytes(frame_of(masked, run="r", round_number=2, base_id="00", prunable=prunable))
    for profile in (path, tmp_path):
        assert model_id(profile_state(str(profile), initial, prunable, seed=0)) == model_id(masked)


def test_a_run_that_has_not_ended_is_refused_and_so_is_another_model(initial: State, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a run writes it when it ends"):
        profile_state(str(tmp_path), initial, [], seed=0)
    path = tmp_path / "model.frame"
    path.write_bytes(frame_of({"w": np.ones(3, np.float32)}, run="r", round_number=2, base_id="00", prunable=["w"]))
    with pytest.raises(ConfigError, match="give the --model and --width that the run had"):
        profile_state(str(tmp_path), initial, [], seed=0)


def test_a_file_that_is_no_archive_is_refused(initial: State, tmp_path: Path) -> None:
    path = tmp_path / "text.npz"
    path.write_text("not an archive")
    with pytest.raises(ConfigError, match="is not a readable"):
        profile_state(str(path), initial, [], seed=0)


@pytest.mark.parametrize(("profile", "reason"), [("uniform42", "there are: trained95, "), ("no.npz", "does not exist")])
def test_an_unknown_profile_is_refused_with_those_there_are(initial: State, profile: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        profile_state(profile, initial, [], seed=0)


def _write(path: Path, state: State) -> Path:
    arrays = {f"cur/{name}": tensor for name, tensor in state.items()}
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path
