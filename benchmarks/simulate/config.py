"""RUN.toml with a table [simulation]: the coordinator's file plus the simulated devices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec

from sparsyedge.benchmarks.simulate.boards import BoardConfig
from sparsyedge.coordinator.aggregation_config import AggregationConfig
from sparsyedge.coordinator.config import Positive, RunConfig, Seed, load_run_config_as
from sparsyedge.edge.config import Identifier, Section
from sparsyedge.edge.config_paths import PathKey
from sparsyedge.edge.training.session import Runtime

__all__ = ["ExportConfig", "SimulatedRunConfig", "SimulationConfig", "load_simulated_run"]


class ExportConfig(Section, frozen=True, kw_only=True):
    """The artifacts that a simulation exports if there are none yet, for the run's method and training."""

    model: str | None = None
    """A model of `sparsyedge export`, or what makes your own: `FILE.py:CALLABLE`, relative to the working folder, or
    `package.module:CALLABLE`; chosen for the data set if left out."""
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    """For the callable of your own module. It gets `classes`, `outputs` and `input_shape` from the data if it takes
    them."""
    init: PathKey | None = None
    """Weights to start from: .safetensors, or a state dict saved by torch."""
    train: str = "all"
    """Which parameters train: `all`, `last:N` layers, or names that match a pattern such as `head.*,norm.*`."""
    prunable: str | None = None
    """Which parameters are pruned, as a pattern; if left out, the weights of convolutions and linear layers."""
    width: Positive = 64
    """How many channels the first stage has."""
    seed: Seed = 0
    """Decides the initial weights."""


class SimulationConfig(Section, frozen=True, kw_only=True):
    """The devices of `sparsyedge simulate`; they share out the training part of the data set.

    Each trains with the run's `threads`.
    """

    devices: Annotated[int, msgspec.Meta(ge=1, le=100_000)]
    """How many devices there are."""
    alpha: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    """Small gives every device few classes, large gives all the same mix. Not for a regression."""
    partition_seed: Seed = 1337
    """Decides which device gets which samples."""
    sampling_seed: Seed | None = None
    """Decides which devices form each round's cohort, and nothing else; if left out, the run's `seed` does."""
    validation: Annotated[int, msgspec.Meta(ge=0)] = 0
    """How many training samples no device gets. Rounds are then evaluated on these, and the test part is used once,
    after the last round."""
    meter: str = "auto"
    """What measures energy, as in device.toml."""
    boards: dict[Identifier, BoardConfig] = msgspec.field(default_factory=dict)
    """The kinds of boards in the fleet by name, with what a step costs them. Reports and records then have these
    modelled costs in place of measured ones; a cohort chosen by cost needs them."""
    runtime: Runtime | None = None
    """Train with onnxruntime-training's API, or as any onnxruntime can; follows the installation if left out."""
    norm_guard: bool = False
    """Without [aggregation]: whether to weigh, bound and combine updates as real runs do by default. Divergence then
    stays hidden."""
    export: ExportConfig | None = None
    """How to export the artifacts if there are none yet."""


class SimulatedRunConfig(RunConfig, frozen=True, kw_only=True):
    """A run whose devices are simulated."""

    simulation: SimulationConfig | None = None
    """Only `sparsyedge simulate` reads this; a run with real devices does not need it. Without `aggregation`, a
    simulation takes the plain mean of all updates."""

    @property
    def cohort_seed(self) -> int:
        """The seed for sampling, if the simulation has one: runs then differ in their cohorts alone."""
        chosen = None if self.simulation is None else self.simulation.sampling_seed
        return super().cohort_seed if chosen is None else chosen

    @property
    def bounded_aggregation(self) -> AggregationConfig | None:
        """None by default: simulated devices can be trusted."""
        guarded = self.simulation is None or self.simulation.norm_guard
        return super().bounded_aggregation if guarded else self.aggregation


def load_simulated_run(path: Path) -> SimulatedRunConfig:
    """Read RUN.toml with its [simulation]; raises ConfigError as `load_run_config` does."""
    return load_run_config_as(SimulatedRunConfig, path)
