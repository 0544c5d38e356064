"""[aggregation] and [server_optimizer] of RUN.toml: from the updates of a round to one mean, then to the next model."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from sparsyedge.edge.config import Identifier, Section
from sparsyedge.edge.errors import ConfigError

__all__ = [
    "DEFAULT_RULE",
    "AggregationConfig",
    "OptimizerName",
    "RuleName",
    "ServerOptimizerConfig",
    "check_aggregation",
    "least_for_krum",
]

RuleName = Literal["mean", "clipped", "trimmed", "median", "krum", "aligned"]
OptimizerName = Literal["fedavg", "fedavgm", "fedadam"]
DEFAULT_RULE: RuleName = "aligned"
"""Chosen by `sparsyedge bench attacks`; docs/explanation/security.md has the table."""


class AggregationConfig(Section, frozen=True, kw_only=True):
    """How the updates of a round are combined."""

    rule: RuleName = DEFAULT_RULE
    """How one model is made of a round's updates: docs/explanation/security.md compares the rules."""
    weights: Literal["samples", "equal"] = "samples"
    """Whether a device counts by its samples, or every device counts the same."""
    samples: dict[str, int] = msgspec.field(default_factory=dict)
    """How many samples a device has, as far as the operator knows; it never weighs more than that."""
    clip: Annotated[float, msgspec.Meta(ge=0.1, le=1000)] | None = None
    """An update may pull this many times as hard as the median one; what the rule says where it is left out."""
    trim: Annotated[float, msgspec.Meta(ge=0, lt=0.5)] = 0.2
    """Of rule `trimmed`: the share of the devices whose values are left out at either end."""
    byzantine: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Of rule `krum`: how many devices may be hostile; a fifth of those that sent an update where it is left out."""


class ServerOptimizerConfig(Section, frozen=True, kw_only=True):
    """From the mean of a round's updates to the next model."""

    name: OptimizerName = "fedavg"
    """Plain averaging, with momentum, or Adam."""
    learning_rate: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """How far the coordinator steps; 1 for fedavg and fedavgm, 0.01 for fedadam, where it is left out."""
    momentum: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.9
    """How much of the step before fedavgm and fedadam keep."""
    second_momentum: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.99
    """How much of its mean of squares fedadam keeps."""
    tau: Annotated[float, msgspec.Meta(gt=0)] = 1e-3
    """What fedadam adds to the root of that mean: small changes stay small."""


def least_for_krum(byzantine: int) -> int:
    """How many updates Krum needs to tell that many hostile ones from the others."""
    return 2 * byzantine + 3


def check_aggregation(config: AggregationConfig, *, cohort_size: int) -> None:
    """Refuse what a cohort of that size cannot give, and samples of no device; raises ConfigError."""
    # Not types of the field: msgspec does not say which key of such a table it means.
    for device, samples in config.samples.items():
        if samples < 1:
            raise ConfigError(f"key `aggregation.samples.{device}` has value {samples}; allowed: at least 1")
        if not _is_identifier(device):
            raise ConfigError(f"key `aggregation.samples` names {device!r}, which cannot be the id of a device")
    if config.byzantine is not None and least_for_krum(config.byzantine) > cohort_size:
        raise ConfigError(
            f"key `aggregation.byzantine` has value {config.byzantine}: Krum needs {least_for_krum(config.byzantine)} "
            f"updates for that, and `cohort_size` is {cohort_size}; allowed are 0 to {max(0, (cohort_size - 3) // 2)}"
        )


def _is_identifier(name: str) -> bool:
    """Whether a device may be called so."""
    try:
        msgspec.convert(name, Identifier)
    except msgspec.ValidationError:
        return False
    return True
