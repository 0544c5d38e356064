"""Groups of devices that download models of their own size, in whole simulated runs."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sparsyedge.benchmarks.simulate import simulate
from sparsyedge.benchmarks.simulate.config import ExportConfig, SimulatedRunConfig, SimulationConfig
from sparsyedge.coordinator.config import LearningRateConfig
from sparsyedge.coordinator.model.model_files import ModelFiles
from sparsyedge.coordinator.record.records import RoundRecord
from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.model.methods import MethodConfig
from sparsyedge.edge.wire.frame import read_header

pytestmark = pytest.mark.heavy

GROUPS: dict[str, Any] = {"sparsities": (0.98, 0.7), "shares": (1, 1)}


def run(folder: Path, name: str, *, rounds: int, **options: Any) -> tuple[SimulatedRunConfig, tuple[RoundRecord, ...]]:
    config = SimulatedRunConfig(
        name="groups",
        artifacts=str(folder / "artifacts"),
        run_dir=str(folder / "run"),
        dataset="digits",
        rounds=rounds,
        cohort_size=4,
        learning_rate=LearningRateConfig(start=0.1, end=0.05),
        method=MethodConfig(name=name, **GROUPS, **options),
        simulation=SimulationConfig(
            devices=40, alpha=0.5, meter="none", runtime="stock", export=ExportConfig(width=4, seed=3)
        ),
    )
    return config, simulate(config, workers=1).rounds


def test_a_model_of_their_own_size_saves_bytes_and_changes_no_weight(tmp_path: Path) -> None:
    _, whole = run(tmp_path / "whole", "sparsyfed", rounds=2)
    config, own = run(tmp_path / "own", "sparsyfed", rounds=2, download="own")
    # A device prunes the whole model to its target anyway.
    assert [record.model_id for record in own] == [record.model_id for record in whole]
    assert own[0].nonzeros_down == whole[0].nonzeros_down
    assert own[1].bytes_down < whole[1].bytes_down
    assert own[1].nonzeros_up == whole[1].nonzeros_up
    assert own[1].nonzeros_down < whole[1].nonzeros_down
    assert whole[1].nonzeros_down == 4 * read_header(ModelFiles(config.run_path).load(2).frame).entries
    with closing(Store.open(config.run_path)) as store:
        assert {"accuracy_at/0.98", "accuracy_at/0.7"} <= store.metrics()[2].keys()


def test_flash_keeps_one_mask_for_each_target(tmp_path: Path) -> None:
    config, records = run(tmp_path, "flash", rounds=3, download="own")
    assert len(records) == 3
    files = ModelFiles(config.run_path)
    masks = {files.load(number).group_masks for number in (2, 3, 4)}
    assert len(masks) == 1
    assert masks != {b""}
    assert files.load(1).group_masks == b""
    assert records[2].global_sparsity == pytest.approx(0.7, abs=1e-3)
