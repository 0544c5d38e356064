"""[aggregation] and [server_optimizer] of RUN.toml: turn a round's updates into one mean, then into the next model."""

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
    """How the coordinator combines the updates of a round."""

    rule: RuleName = DEFAULT_RULE
    """How to combine a round's updates; docs/explanation/security.md compares the rules."""
    weights: Literal["samples", "equal"] = "samples"
    """Weight devices by their samples, or all the same."""
    samples: dict[str, int] = msgspec.field(default_factory=dict)
    """Samples per device, as known to the operator; a device never weighs more than that."""
    clip: Annotated[float, msgspec.Meta(ge=0.1, le=1000)] | None = None
    """Limit on an update's norm, in multiples of the median norm; if left out, the rule's own limit."""
    trim: Annotated[float, msgspec.Meta(ge=0, lt=0.5)] = 0.2
    """For rule `trimmed`: the share of devices to drop at each end."""
    byzantine: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """For rule `krum`: how many devices may be hostile; if left out, a fifth of those that sent an update."""


class ServerOptimizerConfig(Section, frozen=True, kw_only=True):
    """How the coordinator turns the mean of a round's updates into the next model."""

    name: OptimizerName = "fedavg"
    """Plain averaging, averaging with momentum, or Adam."""
    learning_rate: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """The coordinator's step size; if left out, 1 for fedavg and fedavgm, 0.01 for fedadam."""
    momentum: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.9
    """The share of the previous step that fedavgm and fedadam keep."""
    second_momentum: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.99
    """The share of its mean of squares that fedadam keeps."""
    tau: Annotated[float, msgspec.Meta(gt=0)] = 1e-3
    """fedadam adds this to the root of that mean, which keeps small changes small."""


def least_for_krum(byzantine: int) -> int:
    """How many updates Krum needs to single out `byzantine` hostile ones."""
    return 2 * byzantine + 3


def check_aggregation(config: AggregationConfig, *, cohort_size: int) -> None:
    """Raise ConfigError for settings this cohort size cannot meet, and for bad entries in `samples`."""
    # Checked here, not by field types: msgspec would not name the key at fault in such a table.
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
    """Whether the name is a valid device id."""
    try:
        msgspec.convert(name, Identifier)
    except msgspec.ValidationError:
        return False
    return True
