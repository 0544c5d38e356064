"""Picks the cohort of a round. A policy depends on its arguments alone, so a restart need not restore any generator."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Protocol

from sparsyedge.coordinator.rounds.balanced import balanced_cohort
from sparsyedge.edge.model.methods import group_of

__all__ = ["POLICIES", "Policy", "Selection", "lot", "round_robin", "sample_cohort", "uniform"]

Policy = Literal["uniform", "round-robin", "balanced"]


class Selection(Protocol):
    """Orders the devices of a round; the first ones are chosen."""

    def __call__(self, devices: Iterable[str], size: int, *, seed: int, round_number: int) -> list[str]: ...


def uniform(devices: Iterable[str], size: int, *, seed: int, round_number: int) -> list[str]:
    """Every device has the same chance in every round.

    Each device's lot is a hash of seed, round and identity; the lowest lots win. One device that comes or goes changes
    one place in the cohort.
    """

    return sorted(set(devices), key=lambda device: lot(device, seed=seed, round_number=round_number))


def lot(device: str, *, seed: int, round_number: int) -> bytes:
    """The device's lot in a round of `uniform`."""
    return hashlib.sha256(f"{seed}/{round_number}/{device}".encode()).digest()


def round_robin(devices: Iterable[str], size: int, *, seed: int, round_number: int) -> list[str]:
    """Devices take turns in name order; the seed sets the start."""
    ordered = sorted(set(devices))
    start = (seed + (round_number - 1) * size) % len(ordered) if ordered else 0
    return [*ordered[start:], *ordered[:start]]


POLICIES: dict[Policy, Selection] = {"uniform": uniform, "round-robin": round_robin, "balanced": uniform}
"""Lots also fill the places that are left in a cohort of `balanced`."""


def sample_cohort(
    devices: Iterable[str],
    size: int,
    *,
    seed: int,
    round_number: int,
    shares: Sequence[int] = (),
    policy: Policy = "uniform",
    classes: Mapping[str, bytes] | None = None,
) -> tuple[str, ...]:
    """Pick at most `size` devices by the given policy; returns them sorted.

    If the method has groups, each group fills its share of the places first. Places it cannot fill go to the others.
    `classes` says which classes devices have; only `balanced` asks for it.
    """
    drawn = POLICIES[policy](devices, size, seed=seed, round_number=round_number)
    if policy == "balanced":
        first = balanced_cohort(drawn, size, seed=seed, round_number=round_number, classes=classes or {})
        drawn = [*first, *(device for device in drawn if device not in set(first))]
    if shares:
        places = _places(size, shares)
        by_group = {group: [each for each in drawn if group_of(each, shares) == group] for group in range(len(shares))}
        first = [device for group, members in by_group.items() for device in members[: places[group]]]
        drawn = [*first, *(device for device in drawn if device not in set(first))]
    return tuple(sorted(drawn[:size]))


def _places(size: int, shares: Sequence[int]) -> list[int]:
    """Split the places by share, rounded down; the remainder goes to the groups that lost most by rounding."""
    places = [size * share // sum(shares) for share in shares]
    lost = [-(size * share % sum(shares)) for share in shares]
    for group in sorted(range(len(shares)), key=lambda each: lost[each])[: size - sum(places)]:
        places[group] += 1
    return places
