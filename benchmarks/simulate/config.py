"""RUN.toml with a table [simulation]: the coordinator's file, and the devices that a simulation makes up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from sparsyedge.coordinator.aggregation_config import AggregationConfig
from sparsyedge.coordinator.config import Positive, RunConfig, Seed, load_run_config_as
from sparsyedge.edge.config import Section
from sparsyedge.edge.training.session import Runtime

__all__ = ["ExportConfig", "SimulatedRunConfig", "SimulationConfig", "load_simulated_run"]


class ExportConfig(Section, frozen=True, kw_only=True):
    """The artifacts that a simulation makes where there are none yet, for the method of the run."""

    model: str | None = None
    """A model of `sparsyedge export`; the one that suits the data set where it is left out."""
    width: Positive = 64
    """How many channels the first stage has."""
    seed: Seed = 0
    """Decides the initial weights."""


class SimulationConfig(Section, frozen=True, kw_only=True):
    """The devices that `sparsyedge simulate` makes up: the training part of the data set, dealt out to them.

    Each trains with the run's `threads`.
    """

    devices: Annotated[int, msgspec.Meta(ge=1, le=100_000)]
    """How many devices there are."""
    alpha: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    """Small gives every device few classes, large gives all the same mix."""
    partition_seed: Seed = 1337
    """Decides who gets which samples."""
    meter: str = "auto"
    """What measures energy, as in device.toml."""
    runtime: Runtime | None = None
    """What devices train by: onnxruntime-training's API, or as any onnxruntime can; what is installed if left out."""
    norm_guard: bool = False
    """Whether updates are weighed, bounded and combined as those of real devices are by default, if the run has no
    [aggregation]; what diverges is then not seen."""
    export: ExportConfig | None = None
    """How to make the artifacts where there are none yet."""


class SimulatedRunConfig(RunConfig, frozen=True, kw_only=True):
    """A run whose devices are simulated."""

    simulation: SimulationConfig | None = None
    """Read by `sparsyedge simulate` alone: a run with real devices does not need it. A simulation without `aggregation`
    takes the plain mean of everything."""

    @property
    def bounded_aggregation(self) -> AggregationConfig | None:
        """None, unless the run asks for more: simulated devices can be believed."""
        guarded = self.simulation is None or self.simulation.norm_guard
        return super().bounded_aggregation if guarded else self.aggregation


def load_simulated_run(path: Path) -> SimulatedRunConfig:
    """Read RUN.toml with its [simulation]; raises ConfigError as `load_run_config` does."""
    return load_run_config_as(SimulatedRunConfig, path)
