"""Runs that share their budget among layers: what devices send, and what the coordinator averages and records."""

from __future__ import annotations

import math
from contextlib import closing
from pathlib import Path

import pytest

from sparsyedge.benchmarks.simulate import simulate
from sparsyedge.benchmarks.simulate.config import ExportConfig, SimulatedRunConfig, SimulationConfig
from sparsyedge.coordinator.record.metrics import LAYER_PREFIX
from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.model.allocation import erk_counts
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.methods import MethodConfig


@pytest.mark.heavy
def test_devices_share_the_budget_as_the_artifacts_say(tmp_path: Path) -> None:
    config = SimulatedRunConfig(
        name="sim",
        artifacts=str(tmp_path / "artifacts"),
        run_dir=str(tmp_path / "run"),
        dataset="digits",
        rounds=2,
        # With one device, its update is the next model.
        cohort_size=1,
        method=MethodConfig(name="sparsyfed", sparsity=0.9, allocation="erk"),
        simulation=SimulationConfig(devices=10, alpha=1.0, meter="none", export=ExportConfig(width=4)),
    )
    simulate(config, workers=1)
    manifest = Artifacts.load(tmp_path / "artifacts").manifest
    with closing(Store.open(config.run_path)) as store:
        figures = store.metrics()[2]
    shapes = {name: manifest.shapes[name] for name in manifest.prunable}
    densities = {name: 1 - figures[f"{LAYER_PREFIX}{name}"] for name in shapes}
    counts = erk_counts(shapes, 0.9)
    kept = {name: round(share * math.prod(shapes[name])) for name, share in densities.items()}
    assert kept == counts
    work = sum(manifest.positions[name] * count for name, count in counts.items())
    dense = sum(manifest.positions[name] * math.prod(shapes[name]) for name in shapes)
    assert figures["multiply_adds"] == pytest.approx(work / dense)
