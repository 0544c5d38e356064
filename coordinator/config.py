"""RUN.toml: one federated run, read once and checked as a whole."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from sparsyedge.coordinator.aggregation_config import AggregationConfig, ServerOptimizerConfig, check_aggregation
from sparsyedge.coordinator.blobs_config import BlobsConfig, check_blobs
from sparsyedge.coordinator.delivery_config import DeliveryConfig, check_delivery, check_delivery_of
from sparsyedge.coordinator.rounds.cohort import Policy
from sparsyedge.coordinator.run_tables import file_config
from sparsyedge.edge.config import BrokerConfig, Brokers, Identifier, Section, load_config
from sparsyedge.edge.config_paths import DatasetKey, PathKey
from sparsyedge.edge.cores import MAX_THREADS, available_cores
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.methods import MethodConfig, method_of
from sparsyedge.edge.model.training import PLAIN_SGD, TrainingConfig, check_votes, training_of
from sparsyedge.edge.protocol.messages import MAX_EPOCHS, MAX_HOLDOUT
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
# Far beyond any useful rate. A much larger one overflows float32, and no device could finish a step.
Rate = Annotated[float, msgspec.Meta(gt=0, le=1000)]


class LearningRateConfig(Section, frozen=True, kw_only=True):
    """The devices' learning rate; it decays exponentially from round to round."""

    start: Rate = 0.5
    """The rate before the first round; round 1 is already a little below."""
    end: Rate = 0.01
    """The rate of the last round; at most `start`."""


class RunConfig(Section, frozen=True, kw_only=True):
    """One run: what to train, on how many devices, for how long, and where to put the result."""

    version: Annotated[int, msgspec.Meta(ge=RUN_FILE_VERSION, le=RUN_FILE_VERSION)] = RUN_FILE_VERSION
    """The version of this file's format; there is one so far."""
    name: Identifier
    """Names the run in every message and frame; the coordinator refuses updates for another run."""
    artifacts: PathKey
    """The folder made by `sparsyedge export`."""
    run_dir: PathKey
    """The folder of this run: its store, its models and, at the end, model.onnx."""
    dataset: DatasetKey
    """The data to evaluate on: a data set's name (its test part), or the path of an .npz or a folder."""
    rounds: Positive
    """How many rounds the run has."""
    cohort_size: Annotated[int, msgspec.Meta(ge=1, le=100_000)]
    """How many updates a round asks for."""
    data_dir: PathKey | None = None
    """Where to look for data sets first, before $SPARSYEDGE_DATA and the cache."""
    initial: PathKey | None = None
    """The model for round 1: a run directory, an .npz or a .safetensors; if left out, the export's."""
    fleet: Identifier = "default"
    """The fleet whose devices train."""
    epochs: Annotated[int, msgspec.Meta(ge=1, le=MAX_EPOCHS)] = 1
    """How many times a device goes through its samples in a round."""
    batch_size: Positive = 16
    """Samples per training step."""
    codec: Codec = DEFAULT_CODEC
    """How weights are encoded, in both directions."""
    learning_rate: LearningRateConfig = LearningRateConfig()
    """The learning rate of the devices."""
    over_selection: Annotated[float, msgspec.Meta(ge=0, le=4)] = 0.0
    """Extra devices to ask, as a share of `cohort_size`; a round closes when it has `cohort_size` updates."""
    min_updates: Positive | None = None
    """How many updates a round needs to close at its deadline; if left out, the whole cohort's."""
    min_devices: Positive | None = None
    """How many devices must be online to open round 1; if left out, `cohort_size`."""
    deadline_s: Annotated[float, msgspec.Meta(gt=0, le=7 * 86_400)] | None = None
    """How many seconds a round waits; if left out, learned from each device's past."""
    selection: Policy = "uniform"
    """How to pick the cohort from the devices online: `uniform` draws lots, `round-robin` takes turns, `balanced` takes
    turns such that classes come out even, which devices then tell. By what devices reported: `energy` prefers few
    joules per sample, `fast` asks devices of about the same speed, `data` prefers many samples with large losses."""
    aggregation: AggregationConfig | None = None
    """How to combine updates; if left out, with a rule that hostile members cannot outvote."""
    server_optimizer: ServerOptimizerConfig = ServerOptimizerConfig()
    """How the coordinator applies the mean of a round's updates."""
    delivery: DeliveryConfig = DeliveryConfig()
    """Which model to evaluate and deliver."""
    seed: Seed = 1337
    """Seeds the choice of cohorts and the order of batches."""
    threads: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    """How many threads to use for evaluation."""
    ingest_workers: Annotated[int, msgspec.Meta(ge=1, le=MAX_THREADS)] = 1
    """How many processes check and sum updates, at most one per core; 1 leaves it to the coordinator's own."""
    eval_every: Positive = 1
    """Rounds between evaluations; the last round is always evaluated."""
    eval_may_lag: bool = False
    """Whether the next round opens while a model is still being evaluated; the last model is always waited for."""
    eval_devices_every: Annotated[int, msgspec.Meta(ge=0)] = 1
    """Rounds between evaluations on devices, for those that have data for it; 0 for none."""
    holdout: Annotated[float, msgspec.Meta(ge=0, le=MAX_HOLDOUT)] = 0.0
    """The share of its samples that a device without a test part evaluates on and never trains on."""
    broker: Brokers = BrokerConfig()
    """The broker of a fleet without an authority, or as `[[broker]]` the nodes of its cluster."""
    authority: PathKey | None = None
    """The folder of `sparsyedge coordinator init`, for a secured fleet; it says where the broker is."""
    blobs: BlobsConfig | None = None
    """A web server for models and artifacts; if left out, the broker alone has them."""
    method: MethodConfig | None = None
    """The method the artifacts must have been exported for; if left out, any."""
    training: TrainingConfig | None = None
    """The optimizer and augmentation the artifacts must have been exported for; if left out, any."""

    @property
    def updates_needed(self) -> int:
        """How many updates a round needs to close at its deadline."""
        return self.cohort_size if self.min_updates is None else self.min_updates

    @property
    def devices_needed(self) -> int:
        """How many devices must be online for round 1 to open."""
        return self.cohort_size if self.min_devices is None else self.min_devices

    @property
    def cohort_seed(self) -> int:
        """What decides cohorts; a config that extends this one may have another seed for them alone."""
        return self.seed

    @property
    def bounded_aggregation(self) -> AggregationConfig | None:
        """How to combine updates. A config that extends this one may return None: average everything unchecked."""
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
    """Read RUN.toml; raises ConfigError naming the key, its value and the allowed values.

    Other commands may have their own tables in the file (run_tables.py); this checks them and leaves them out.
    """
    return load_run_config_as(RunConfig, path)


def load_run_config_as(kind: type[Config], path: Path) -> Config:
    """Read RUN.toml as a config that extends RunConfig."""
    found = load_config(path, partial(file_config, kind))
    config = kind(**{key: getattr(found, key) for key in kind.__struct_fields__})
    try:
        check_run_config(config)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return config


def check_run_config(config: RunConfig) -> None:
    """Raise ConfigError for values that contradict each other, and for an unknown method."""
    check_delivery(config.delivery)
    if config.method is not None:
        check_delivery_of(config.delivery, method_of(config.method))
    training = PLAIN_SGD if config.training is None else training_of(config.training)
    if config.method is not None:
        check_votes(method_of(config.method), training)
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
    if config.ingest_workers > available_cores():
        raise ConfigError(
            f"key `ingest_workers` has value {config.ingest_workers}: this process may use {available_cores()} cores; "
            f"allowed are 1 to {available_cores()}"
        )
    if config.blobs is not None:
        check_blobs(config.blobs)
    rate = config.learning_rate
    if rate.end > rate.start:
        raise ConfigError(
            f"key `learning_rate.end` has value {rate.end}: the rate falls during a run, so at most "
            f"`learning_rate.start` = {rate.start} is allowed"
        )
