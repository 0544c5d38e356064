"""Many devices on one machine or a Ray cluster: the coordinator and agents of real runs, with another link.

from pathlib import Path
from sparsyedge.benchmarks.simulate import load_simulated_run, simulate

summary = simulate(load_simulated_run(Path("run.toml")))
summary.rounds[-1].test_accuracy
"""

from sparsyedge.benchmarks.simulate.config import ExportConfig, SimulatedRunConfig, SimulationConfig, load_simulated_run
from sparsyedge.benchmarks.simulate.engine import Engine
from sparsyedge.benchmarks.simulate.simulated_device import Backend
from sparsyedge.benchmarks.simulate.simulation import LinkKind, simulate

__all__ = [
    "Backend",
    "Engine",
    "ExportConfig",
    "LinkKind",
    "SimulatedRunConfig",
    "SimulationConfig",
    "load_simulated_run",
    "simulate",
]
