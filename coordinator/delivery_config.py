"""The table `[delivery]` of RUN.toml: which model a run evaluates and delivers."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sparsyedge.edge.config import Section
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.methods import Method

__all__ = ["MAX_AVERAGED", "DeliveryConfig", "check_delivery", "check_delivery_of"]

MAX_AVERAGED = 100


class DeliveryConfig(Section, frozen=True, kw_only=True):
    """What to evaluate and deliver: the last global model, or the mean of the last few."""

    average: Annotated[int, msgspec.Meta(ge=1, le=MAX_AVERAGED)] = 1
    """How many of the last global models to average; 1 takes the last one alone."""
    broadcast_every: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """After every so many rounds, devices continue from the average, too; if left out, never."""


def check_delivery(config: DeliveryConfig) -> None:
    """Raise ConfigError for keys that contradict each other."""
    if config.broadcast_every is not None and config.average == 1:
        raise ConfigError(
            f"key `delivery.broadcast_every` has value {config.broadcast_every}: with `delivery.average` = 1 there is "
            f"no average to send; raise `delivery.average` or remove the key"
        )


def check_delivery_of(config: DeliveryConfig, method: Method) -> None:
    """Raise ConfigError if the average of several models would be denser than the method's target."""
    if config.average > 1 and method.sparsity > 0 and not method.keeps_zeros:
        raise ConfigError(
            f"key `delivery.average` has value {config.average}: the mask of method {method.name} moves, so the mean "
            f"of several models has more weights than its target leaves; allowed is 1, or a method whose zeros stay "
            f"zero, such as sparsyfed"
        )
