"""The settings of one run, and the two scales of experiments."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.methods import MethodConfig, method_of
from sparsyedge.edge.model.training import TrainingConfig
from sparsyedge.edge.wire.codecs import DEFAULT_CODEC, Codec

__all__ = ["OTHER_SEED", "SCALES", "SEEDS", "Pretraining", "Scale", "SeedsVary", "Setting"]

SEEDS = (5378, 9421, 2035, 7117, 1913, 4649, 8231, 6353)
"""The paper's three, then ours: three screen a change, eight decide. Each determines cohorts, batch orders and initial
weights."""
OTHER_SEED = 1337
"""What decides all but the cohorts where seeds vary the sampling alone; the paper's for its other random processes."""
SeedsVary = Literal["sampling"]


class Pretraining(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A central training that the federated one begins from; all seeds begin with the same weights."""

    dataset: str
    epochs: int
    batch_size: int
    learning_rate: float
    """Of AdamW in the first step; it falls to zero along a cosine."""
    seed: int


class Setting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that determines the result of a run."""

    dataset: str
    method: MethodConfig
    alpha: float
    devices: int
    cohort: int
    rounds: int
    width: int
    learning_rate: float
    last_learning_rate: float
    eval_every: int
    seed: int
    model: str | None = None
    """None means the default for the data set."""
    epochs: int = 1
    batch_size: int = 16
    training: TrainingConfig | None = None
    """None means plain SGD."""
    init: str | None = None
    """A file of weights in the folders of data sets to begin with; None draws weights at random."""
    validation: int | None = None
    """Training samples set aside: rounds are evaluated on these, the last model on the test part. None: all rounds are
    evaluated on the test part."""
    average: int | None = None
    """How many of the last global models are averaged for evaluation; None: the last one alone is evaluated."""
    selection: Literal["balanced"] | None = None
    """How cohorts are picked; None draws lots."""
    pretraining: Pretraining | None = None
    """What makes the weights to begin with, instead of a file."""
    seeds_vary: SeedsVary | None = None
    """`sampling`: the seed decides cohorts alone, OTHER_SEED the rest. None: the seed decides everything."""
    codec: Codec | None = None
    """How values travel; None means as in any run."""

    def __post_init__(self) -> None:
        # Not only in the key: an interrupted run refuses to resume with a method that is spelled differently.
        msgspec.structs.force_setattr(self, "method", _without_defaults(self.method))
        if self.codec == DEFAULT_CODEC:
            msgspec.structs.force_setattr(self, "codec", None)
        if self.seeds_vary == "sampling" and self.cohort >= self.devices:
            raise ConfigError(
                f"--seeds-vary has value sampling: with all {self.devices} devices in every round ({self.dataset}, "
                f"{self.method.name}) there is nothing to sample; leave it out, or choose other rows with --only"
            )

    @property
    def training_seed(self) -> int:
        """What decides initial weights and batch orders."""
        return self.seed if self.seeds_vary is None else OTHER_SEED

    @property
    def key(self) -> str:
        """A name for files: readable, and different for different settings."""
        # Skip unset options: a setting keeps its name when methods gain new ones.
        given = _without_none(msgspec.to_builtins(self))
        if self.training is not None:
            given["training"] = _given(self.training)
        digest = hashlib.sha256(msgspec.json.encode(given, order="deterministic")).hexdigest()[:8]
        sparsity = "" if self.method.sparsity is None else f"-{self.method.sparsity:g}"
        return f"{self.dataset}-{self.method.name}{sparsity}-a{self.alpha:g}-r{self.rounds}-s{self.seed}-{digest}"


def _without_defaults(config: MethodConfig) -> MethodConfig:
    """The same method without options at their defaults; raises ConfigError as `method_of` does."""
    method, default = method_of(config), method_of(MethodConfig(name=config.name))
    # Keep the target as given: it is part of the results' names.
    options = [option for option in MethodConfig.__struct_fields__ if option not in ("name", "sparsity")]
    same = [option for option in options if getattr(method, option) == getattr(default, option)]
    return msgspec.structs.replace(config, **dict.fromkeys(same))


def _given(training: TrainingConfig) -> dict[str, Any]:
    """The options that differ from their defaults, so that a new option changes no name."""
    options, defaults = msgspec.to_builtins(training), msgspec.to_builtins(TrainingConfig())
    return {option: value for option, value in options.items() if value != defaults[option]}


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in fields.items()
        if value is not None
    }


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The default size of experiments."""

    width: int
    images: str
    """The model for image data sets."""
    rounds: dict[str, int]
    """By data set."""
    learning_rate: float
    last_learning_rate: float
    eval_every: int
    seeds: int

    def model(self, dataset: str) -> str | None:
        """The model for a data set; None means the default, since sound needs another model than images."""
        return None if dataset.startswith("speech_commands") else self.images


SCALES = {
    # Four to fourteen minutes per run on one core. Every method trains with this model:
    # docs/explanation/reproduction.md.
    "small": Scale(
        width=8,
        images="resnet18-calm",
        rounds={"cifar10": 60, "cifar100": 60, "speech_commands": 30, "digits": 5, "cifar10_second": 50},
        learning_rate=0.5,
        last_learning_rate=0.01,
        eval_every=5,
        seeds=1,
    ),
    "full": Scale(
        width=64,
        images="resnet18",
        rounds={"cifar10": 700, "cifar100": 700, "speech_commands": 500, "digits": 20, "cub200": 50},
        learning_rate=0.5,
        last_learning_rate=0.01,
        eval_every=10,
        seeds=3,
    ),
}
