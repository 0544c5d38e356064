"""RUN.toml: one federated run, read once and checked as a whole."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from sparsyedge.coordinator.aggregation_config import AggregationConfig, ServerOptimizerConfig, check_aggregation
from sparsyedge.coordinator.rounds.cohort import Policy
from sparsyedge.coordinator.run_tables import file_config
from sparsyedge.edge.config import BrokerConfig, Identifier, Section, load_config
from sparsyedge.edge.config_paths import DatasetKey, PathKey
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.methods import MethodConfig, method_of
from sparsyedge.edge.protocol.messages import MAX_EPOCHS
from sparsyedge.edge.wire.codecs import DEFAULT_CODEC, Codec

__all__ = [
    "LearningRateConfig",
    "Positive",
    "RunConfig",
    "Seed",
    "check_run_config",
    "load_run_config",
    "load_run_config_as",
]

RUN_FILE_VERSION = 1

Positive = Annotated[int, msgspec.Meta(ge=1)]
# Seeds travel as JSON numbers, which other readers hold as doubles.
Seed = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
# Far beyond what trains; float32 would make infinity of what is larger still, and no device could finish a step.
Rate = Annotated[float, msgspec.Meta(gt=0, le=1000)]


class LearningRateConfig(Section, frozen=True, kw_only=True):
    """The learning rate of the devices, which falls from round to round, exponentially."""

    start: Rate = 0.5
    """The rate before the first round, which is already a little below."""
    end: Rate = 0.01
    """The rate of the last round; at most `start`."""


class RunConfig(Section, frozen=True, kw_only=True):
    """What is trained, on how many devices, for how long, and where the result goes."""

    version: Annotated[int, msgspec.Meta(ge=RUN_FILE_VERSION, le=RUN_FILE_VERSION)] = RUN_FILE_VERSION
    """Which meaning the keys of this file have; there is one so far."""
    name: Identifier
    """Names the run in every message and frame; an update made for another run is refused."""
    artifacts: PathKey
    """The folder that `sparsyedge export` made."""
    run_dir: PathKey
    """The folder of this run: its store, its models and, at the end, model.onnx."""
    dataset: DatasetKey
    """What the model is evaluated on: the test part of a data set by name, or the path of an .npz or a folder."""
    rounds: Positive
    """How many rounds the run has."""
    cohort_size: Annotated[int, msgspec.Meta(ge=1, le=100_000)]
    """How many updates a round asks for."""
    data_dir: PathKey | None = None
    """Where data sets are looked for first, before $SPARSYEDGE_DATA and the cache."""
    initial: PathKey | None = None
    """The model that round 1 starts from: a run directory, an .npz or a .safetensors; else the export's."""
    fleet: Identifier = "default"
    """The fleet whose devices train."""
    epochs: Annotated[int, msgspec.Meta(ge=1, le=MAX_EPOCHS)] = 1
    """How often a device goes through its samples in a round."""
    batch_size: Positive = 16
    """How many samples a step takes."""
    codec: Codec = DEFAULT_CODEC
    """How the values of weights travel, both ways."""
    learning_rate: LearningRateConfig = LearningRateConfig()
    """The learning rate of the devices."""
    over_selection: Annotated[float, msgspec.Meta(ge=0, le=4)] = 0.0
    """The share of devices that are asked beyond `cohort_size`; a round closes when it has `cohort_size` updates."""
    min_updates: Positive | None = None
    """A round may close at its deadline with this many; the whole cohort where it is left out."""
    min_devices: Positive | None = None
    """Round 1 opens when this many are online; the cohort's size where it is left out."""
    deadline_s: Annotated[float, msgspec.Meta(gt=0, le=7 * 86_400)] | None = None
    """How many seconds a round waits; learned from each device's own past where it is left out."""
    selection: Policy = "uniform"
    """Who of the devices that are online takes part: `uniform` draws lots, `round-robin` takes turns."""
    aggregation: AggregationConfig | None = None
    """How updates are combined; if left out, by a rule that hostile members cannot outvote."""
    server_optimizer: ServerOptimizerConfig = ServerOptimizerConfig()
    """What the coordinator makes of the mean of a round's updates."""
    seed: Seed = 1337
    """Decides cohorts and the order of batches."""
    threads: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    """How many threads evaluate."""
    eval_every: Positive = 1
    """Evaluate after every so many rounds; the last round is always evaluated."""
    broker: BrokerConfig = BrokerConfig()
    """Where the fleet meets, where it is not a secured one."""
    authority: PathKey | None = None
    """The folder of `sparsyedge coordinator init`, for a secured fleet; it says where the broker is."""
    method: MethodConfig | None = None
    """What the artifacts must have been exported for; whatever they were exported for where it is left out."""

    @property
    def updates_needed(self) -> int:
        """How many updates a round needs to close at its deadline."""
        return self.cohort_size if self.min_updates is None else self.min_updates

    @property
    def devices_needed(self) -> int:
        """How many devices must be online for round 1 to open."""
        return self.cohort_size if self.min_devices is None else self.min_devices

    @property
    def bounded_aggregation(self) -> AggregationConfig | None:
        """How updates are combined. A config that extends this one may say None: believe and average everything."""
        return self.aggregation or AggregationConfig()

    @property
    def artifacts_path(self) -> Path:
        return Path(self.artifacts).expanduser()

    @property
    def run_path(self) -> Path:
        return Path(self.run_dir).expanduser()

    @property
    def initial_path(self) -> Path | None:
        return None if self.initial is None else Path(self.initial).expanduser()

    @property
    def data_path(self) -> Path | None:
        return None if self.data_dir is None else Path(self.data_dir).expanduser()


Config = TypeVar("Config", bound=RunConfig)


def load_run_config(path: Path) -> RunConfig:
    """Read RUN.toml; raises ConfigError that names the key, its value and what is allowed.

    Other commands may have tables of their own in the file (run_tables.py); they are checked and left out.
    """
    return load_run_config_as(RunConfig, path)


def load_run_config_as(kind: type[Config], path: Path) -> Config:
    """The same for a config that extends RunConfig."""
    found = load_config(path, partial(file_config, kind))
    config = kind(**{key: getattr(found, key) for key in kind.__struct_fields__})
    try:
        check_run_config(config)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return config


def check_run_config(config: RunConfig) -> None:
    """Refuse values that are allowed alone and not together, and a method that there is not."""
    if config.method is not None:
        method_of(config.method)
    if config.updates_needed > config.cohort_size:
        raise ConfigError(
            f"key `min_updates` has value {config.updates_needed}: a cohort of `cohort_size` = {config.cohort_size} "
            f"gives at most {config.cohort_size}; allowed are 1 to {config.cohort_size}"
        )
    if config.devices_needed < config.updates_needed:
        raise ConfigError(
            f"key `min_devices` has value {config.devices_needed}: a round needs `min_updates` = "
            f"{config.updates_needed} updates, so at least that many devices must be online; raise it or lower "
            f"`min_updates`"
        )
    if config.aggregation is not None:
        check_aggregation(config.aggregation, cohort_size=config.cohort_size)
    rate = config.learning_rate
    if rate.end > rate.start:
        raise ConfigError(
            f"key `learning_rate.end` has value {rate.end}: the rate falls during a run, so at most "
            f"`learning_rate.start` = {rate.start} is allowed"
        )
