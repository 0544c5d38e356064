"""A sparse start: runs that never hold a dense model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sparsyedge.benchmarks.simulate import simulate
from sparsyedge.benchmarks.simulate.config import ExportConfig, SimulatedRunConfig, SimulationConfig
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.checkpoint import read_initial_state
from sparsyedge.edge.model.methods import MethodConfig, make_method
from sparsyedge.edge.model.training import check_votes, make_training
from sparsyedge.edge.tensors import count_nonzero
from sparsyedge.export.agreement import verify

Export = Callable[..., Artifacts]


def test_the_export_is_as_sparse_as_the_target_and_agrees_with_torch(export_method: Export) -> None:
    artifacts = export_method("sparsyfed", start="erk", sparsity=0.9)
    manifest, state = artifacts.manifest, read_initial_state(artifacts)
    size = sum(state[name].size for name in manifest.prunable)
    assert count_nonzero(state, manifest.prunable) == size - round(0.9 * size)
    assert not manifest.has_api_files
    parity = verify(artifacts)
    assert max(parity.loss, parity.gradient, parity.updated, parity.plain) <= 1e-3


@pytest.mark.heavy
def test_a_run_never_holds_a_dense_model(tmp_path: Path) -> None:
    config = SimulatedRunConfig(
        name="sim",
        artifacts=str(tmp_path / "artifacts"),
        run_dir=str(tmp_path / "run"),
        dataset="digits",
        rounds=2,
        cohort_size=3,
        method=MethodConfig(name="sparsyfed", sparsity=0.9, start="erk"),
        simulation=SimulationConfig(devices=10, alpha=1.0, meter="none", export=ExportConfig(width=4)),
    )
    first, second = simulate(config, workers=1).rounds
    assert first.global_sparsity >= 0.8999
    assert second.global_sparsity >= first.global_sparsity
    # From the first round on, an update is a small part of a dense model.
    assert first.bytes_up * 4 < first.updates * first.dense_bytes


@pytest.mark.heavy
def test_devices_that_vote_do_not_train_and_send_little_more_than_positions(tmp_path: Path) -> None:
    config = SimulatedRunConfig(
        name="sim",
        artifacts=str(tmp_path / "artifacts"),
        run_dir=str(tmp_path / "run"),
        dataset="digits",
        rounds=2,
        cohort_size=3,
        method=MethodConfig(name="sparsyfed", sparsity=0.9, start="saliency"),
        simulation=SimulationConfig(devices=10, alpha=1.0, meter="none", export=ExportConfig(width=4)),
    )
    first, second = simulate(config, workers=1).rounds
    assert first.global_sparsity >= 0.8999
    assert second.global_sparsity == first.global_sparsity
    # A position of ten takes less than a byte; its value, if it travelled, four.
    assert first.bytes_up < second.bytes_up
    assert first.bytes_up < 0.1 * first.updates * first.dense_bytes / 4


@pytest.mark.parametrize(
    ("training", "sentence"),
    [
        ({"optimizer": "adamw"}, "`training.optimizer` has value 'adamw': with `method.start` = 'saliency'"),
        ({"clip_norm": 1.0}, "`training.clip_norm` has value 1.0: with `method.start` = 'saliency'"),
    ],
)
def test_votes_need_steps_that_show_gradients(training: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_votes(make_method("sparsyfed", start="saliency"), make_training(**training))
    check_votes(make_method("sparsyfed", start="erk"), make_training(**training))


@pytest.mark.parametrize("start", ["erk", "saliency"])
@pytest.mark.parametrize(
    ("options", "why"),
    [({"uplink": "delta"}, "does not stay sparse"), ({"beta": 1.0}, "zero weights grow back")],
)
def test_a_start_that_would_not_last_is_refused_with_the_key(start: str, options: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=rf"`method.start` has value '{start}'.*{why}"):
        make_method("sparsyfed", start=start, **options)


@pytest.mark.parametrize("name", ["dense", "topk", "zerofl", "flash-jmwst", "naive-powerprop"])
def test_methods_whose_zeros_grow_back_have_no_sparse_start(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"`method.start` has value 'erk': method {name} has no such option"):
        make_method(name, start="erk")
