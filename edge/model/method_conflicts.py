"""Options of a method that contradict each other: refused when a config is read, with the key, the value and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sparsyedge.edge.errors import ConfigError

__all__ = ["check_conflicts"]


class Conflict(NamedTuple):
    """Two options that cannot both have these values; None stands for any value."""

    key: str
    value: object
    other: str
    other_value: object
    why: str


CONFLICTS = (
    Conflict(
        "zero_biases",
        "frozen",
        "regrowth",
        "free",
        "parameters that are zero cannot stay zero and grow at the same time",
    ),
    Conflict("start", "saliency", "download", "own", "devices vote on the round's model, which groups do not receive"),
    Conflict("regrow_every", None, "download", "own", "devices vote on the round's model, which groups do not receive"),
    Conflict(
        "download",
        "own",
        "uplink",
        "delta",
        "what a device never had would count as changed",
    ),
)
NEEDS = {"download": "sparsities"}
"""Options that mean nothing without another."""
MOST_GROUPS = 16
"""As many models of their own as a task has room for."""


def check_conflicts(options: Mapping[str, Any]) -> None:
    """Raise ConfigError for the first pair of options, as the user gave them, that contradict each other."""
    for each in CONFLICTS:
        if _is(options, each.key, each.value) and _is(options, each.other, each.other_value):
            raise ConfigError(
                f"key `method.{each.key}` has value {options[each.key]!r} and key `method.{each.other}` has value "
                f"{options[each.other]!r}: {each.why}; remove one of the two keys"
            )

    for key, other in NEEDS.items():
        if key in options and not options.get(other):
            raise ConfigError(
                f"key `method.{key}` has value {options[key]!r}: it says what groups of devices do, and there is no "
                f"`method.{other}`; add it, or remove `method.{key}`"
            )
    if "download" in options and len(set(options["sparsities"])) > MOST_GROUPS:
        raise ConfigError(
            f"key `method.sparsities` has {len(set(options['sparsities']))} different values: with `method.download` "
            f"= 'own' at most {MOST_GROUPS} are allowed; take fewer, or remove `method.download`"
        )
    _check_start(options)
    _check_allocation(options)
    _check_warmup(options)
    _check_regrowth(options)
    _check_groups(options)


def _is(options: Mapping[str, Any], key: str, value: object) -> bool:
    return key in options and (value is None or options[key] == value)


def _check_start(options: Mapping[str, Any]) -> None:
    if "start" in options and options.get("uplink") == "delta":
        raise ConfigError(
            f"key `method.start` has value {options['start']!r}: with `method.uplink` = 'delta' the model does not "
            f"stay sparse; remove one of the two keys"
        )
    if "start" in options and options.get("beta") == 1:
        raise ConfigError(
            f"key `method.start` has value {options['start']!r}: with `method.beta` = 1 zero weights grow back; raise "
            f"`method.beta` above 1 or remove the key"
        )


def _check_allocation(options: Mapping[str, Any]) -> None:
    allocation = options.get("allocation", "global")
    if allocation != "global" and options.get("uplink") == "delta":
        raise ConfigError(
            f"key `method.allocation` has value {allocation!r}: with `method.uplink` = 'delta' changes are pruned, and "
            f"the layers' shares are those of weights; remove one of the two keys"
        )
    if options.get("allocation_price") and allocation != "lamp":
        raise ConfigError(
            f"key `method.allocation_price` has value {options['allocation_price']:g}: with `method.allocation` = "
            f"{allocation!r} weights have no scores to divide; choose 'lamp' or remove the key"
        )


def _check_warmup(options: Mapping[str, Any]) -> None:
    if "activation_warmup" in options and options.get("activation_floor") == 1:
        raise ConfigError(
            f"key `method.activation_warmup` has value {options['activation_warmup']}: with "
            f"`method.activation_floor` = 1 inputs are never pruned, so there is nothing to warm up for; remove one of "
            f"the two keys"
        )


def _check_regrowth(options: Mapping[str, Any]) -> None:
    every = options.get("regrow_every")
    if every is None:
        if "regrow_share" in options:
            raise ConfigError(
                f"key `method.regrow_share` has value {options['regrow_share']:g}: nothing grows back without "
                f"`method.regrow_every`; set it, for example to 10, or remove the key"
            )
        return
    against = {
        "uplink": ("delta", "the model does not stay sparse"),
        "beta": (1, "zero weights grow back by themselves"),
        "aggregation": ("nonzero-mean", "a vote counts the same whether one device casts it or all"),
    }
    for key, (value, why) in against.items():
        if options.get(key) == value:
            raise ConfigError(
                f"key `method.regrow_every` has value {every}: with `method.{key}` = {value!r} {why}; remove one of "
                f"the two keys"
            )
    if options.get("sparsities"):
        raise ConfigError(
            f"key `method.regrow_every` has value {every}: with `method.sparsities` devices have masks of different "
            f"sizes, and the votes are for one; remove one of the two keys"
        )


def _check_groups(options: Mapping[str, Any]) -> None:
    sparsities, shares = options.get("sparsities", ()), options.get("shares", ())
    if len(sparsities) != len(shares):
        raise ConfigError(
            f"key `method.sparsities` has {len(sparsities)} values and key `method.shares` has {len(shares)}; "
            f"give one share per sparsity, for example [0.9, 0.85, 0.8] and [40, 30, 30]"
        )
