"""The mean of the last global models: its values, its density, and runs that deliver it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from sparsyedge.benchmarks.simulate import simulate
from sparsyedge.benchmarks.simulate.config import SimulatedRunConfig, SimulationConfig
from sparsyedge.coordinator.config import check_run_config
from sparsyedge.coordinator.delivery_config import DeliveryConfig
from sparsyedge.coordinator.model.averaged_model import mean_of_frames
from sparsyedge.coordinator.model.model_files import ModelFiles
from sparsyedge.coordinator.record.observer import SilentObserver
from sparsyedge.coordinator.record.records import RoundRecord
from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.methods import MethodConfig, make_method
from sparsyedge.edge.tensors import State, global_sparsity, model_id
from sparsyedge.edge.wire.flat_layout import FlatLayout
from sparsyedge.edge.wire.frame import decode_frame, frame_of

LAYOUT = FlatLayout.of({"fc.weight": (2, 5), "fc.bias": (2,)}, ["fc.weight"])


def frame(weights: list[float], biases: list[float]) -> bytes:
    state = {"fc.weight": np.array(weights, np.float32).reshape(2, 5), "fc.bias": np.array(biases, np.float32)}
    return frame_of(state, run="run", round_number=2, base_id=model_id(state), base=None, prunable=["fc.weight"])


def test_every_tensor_is_the_mean_of_the_models() -> None:
    frames = [frame([1, 0, 0, 2, 0, 0, 0, 0, 3, 0], [1, 2]), frame([3, 0, 0, 0, 0, 0, 0, 0, 1, 0], [2, 6])]
    mean = mean_of_frames(frames, LAYOUT, make_method("dense"))
    assert mean["fc.weight"].reshape(-1).tolist() == [2, 0, 0, 1, 0, 0, 0, 0, 2, 0]
    assert mean["fc.bias"].tolist() == [1.5, 4]


def test_the_mean_is_never_denser_than_the_target() -> None:
    frames = [frame([9, 8, 1, 0, 0, 0, 0, 0, 0, 0], [0, 0]), frame([9, 8, 0, 1, 2, 0, 0, 0, 0, 0], [0, 0])]
    mean = mean_of_frames(frames, LAYOUT, make_method("sparsyfed", sparsity=0.7))
    assert mean["fc.weight"].reshape(-1).tolist() == [9, 8, 0, 0, 1, 0, 0, 0, 0, 0]


def make_config(artifacts: Artifacts, folder: Path, **delivery: int) -> SimulatedRunConfig:
    return SimulatedRunConfig(
        name="sim",
        artifacts=str(artifacts.directory),
        run_dir=str(folder),
        dataset="digits",
        rounds=4,
        cohort_size=3,
        simulation=SimulationConfig(devices=10, alpha=0.5, meter="none"),
        delivery=DeliveryConfig(**delivery),
    )


def models_of(folder: Path, artifacts: Artifacts) -> dict[int, State]:
    files = ModelFiles(folder)
    return {
        number: decode_frame(files.load(number).frame, artifacts.manifest.shapes).state for number in files.rounds()
    }


@pytest.mark.heavy
def test_a_run_delivers_and_evaluates_the_mean_of_its_last_models(digits_artifacts: Artifacts, tmp_path: Path) -> None:
    averaged = simulate(make_config(digits_artifacts, tmp_path / "averaged", average=3), workers=1)
    plain = simulate(make_config(digits_artifacts, tmp_path / "plain"), workers=1)
    # The fleet's own models are the same; what leaves the run is not.
    assert [record.model_id for record in averaged.rounds] == [record.model_id for record in plain.rounds]
    assert averaged.run.model_sha256 != plain.run.model_sha256
    models = models_of(tmp_path / "averaged", digits_artifacts)
    delivered = decode_frame(
        (tmp_path / "averaged" / "model.frame").read_bytes(), digits_artifacts.manifest.shapes
    ).state
    mean = sum(models[number]["bn1.bias"] for number in (3, 4, 5)) / np.float32(3)
    np.testing.assert_allclose(delivered["bn1.bias"], mean, rtol=1e-6)
    prunable = digits_artifacts.manifest.prunable
    assert global_sparsity(delivered, prunable) >= digits_artifacts.manifest.method.sparsity - 1e-4
    with closing(Store.open(tmp_path / "averaged")) as store:
        figures = store.metrics()
    assert figures[4]["single_accuracy"] == plain.rounds[-1].test_accuracy


@pytest.mark.heavy
def test_devices_continue_from_the_mean_where_it_is_sent(digits_artifacts: Artifacts, tmp_path: Path) -> None:
    sent = simulate(make_config(digits_artifacts, tmp_path / "sent", average=2, broadcast_every=3), workers=1)
    plain = simulate(make_config(digits_artifacts, tmp_path / "plain"), workers=1)
    same = [ours.model_id == theirs.model_id for ours, theirs in zip(sent.rounds, plain.rounds, strict=True)]
    assert same == [True, True, False, False]
    before = models_of(tmp_path / "plain", digits_artifacts)
    mean = (before[3]["bn1.bias"] + before[4]["bn1.bias"]) / np.float32(2)
    np.testing.assert_allclose(models_of(tmp_path / "sent", digits_artifacts)[4]["bn1.bias"], mean, rtol=1e-6)


class Killed(SilentObserver):
    """Stops the run after a round, as a crash would."""

    def round_closed(self, record: RoundRecord) -> None:
        if record.round == 3:
            raise KeyboardInterrupt


@pytest.mark.heavy
def test_a_restart_changes_no_bit_of_the_mean(digits_artifacts: Artifacts, tmp_path: Path) -> None:
    delivery = {"average": 2, "broadcast_every": 2}
    whole = simulate(make_config(digits_artifacts, tmp_path / "whole", **delivery), workers=1)
    config = make_config(digits_artifacts, tmp_path / "cut", **delivery)
    with pytest.raises(KeyboardInterrupt):
        simulate(config, workers=1, observer=Killed())
    resumed = simulate(config, workers=1)
    assert resumed.run.model_sha256 == whole.run.model_sha256


def test_an_average_that_would_be_too_dense_is_refused_with_the_key(tmp_path: Path) -> None:
    config = SimulatedRunConfig(
        name="sim",
        artifacts=str(tmp_path),
        run_dir=str(tmp_path / "run"),
        dataset="digits",
        rounds=4,
        cohort_size=3,
        method=MethodConfig(name="topk"),
        delivery=DeliveryConfig(average=5),
    )
    with pytest.raises(ConfigError, match=r"`delivery.average` has value 5: the mask of method topk moves"):
        check_run_config(config)


def test_sending_the_mean_of_one_model_is_refused_with_the_key(digits_artifacts: Artifacts, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"`delivery.broadcast_every` has value 2: with `delivery.average` = 1"):
        check_run_config(make_config(digits_artifacts, tmp_path, broadcast_every=2))
