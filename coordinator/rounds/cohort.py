"""Who takes part in a round. A policy is a function of its arguments alone, so no generator's state has to survive."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

from sparsyedge.edge.model.methods import group_of

__all__ = ["POLICIES", "Policy", "Selection", "round_robin", "sample_cohort", "uniform"]

Policy = Literal["uniform", "round-robin"]


class Selection(Protocol):
    """Puts the devices of a round into the order in which they are chosen."""

    def __call__(self, devices: Iterable[str], size: int, *, seed: int, round_number: int) -> list[str]: ...


def uniform(devices: Iterable[str], size: int, *, seed: int, round_number: int) -> list[str]:
    """Every device has the same chance in every round.

    Each draws a lot of its own from seed, round and identity, and the lowest lots win: one device that comes or goes
    changes one place of the cohort.
    """

    def lot(device: str) -> bytes:
        return hashlib.sha256(f"{seed}/{round_number}/{device}".encode()).digest()

    return sorted(set(devices), key=lot)


def round_robin(devices: Iterable[str], size: int, *, seed: int, round_number: int) -> list[str]:
    """Devices take turns in the order of their names, starting where the seed says."""
    ordered = sorted(set(devices))
    start = (seed + (round_number - 1) * size) % len(ordered) if ordered else 0
    return [*ordered[start:], *ordered[:start]]


POLICIES: dict[Policy, Selection] = {"uniform": uniform, "round-robin": round_robin}


def sample_cohort(
    devices: Iterable[str],
    size: int,
    *,
    seed: int,
    round_number: int,
    shares: Sequence[int] = (),
    policy: Policy = "uniform",
) -> tuple[str, ...]:
    """At most `size` of the devices, in sorted order, by one of the policies.

    Where a method has groups, each gets its share of the places first, as far as it has devices for them.
    """
    drawn = POLICIES[policy](devices, size, seed=seed, round_number=round_number)
    if shares:
        places = _places(size, shares)
        by_group = {group: [each for each in drawn if group_of(each, shares) == group] for group in range(len(shares))}
        first = [device for group, members in by_group.items() for device in members[: places[group]]]
        drawn = [*first, *(device for device in drawn if device not in set(first))]
    return tuple(sorted(drawn[:size]))


def _places(size: int, shares: Sequence[int]) -> list[int]:
    """The places of each group: its share of them rounded down, and the rest to those that lost most by it."""
    places = [size * share // sum(shares) for share in shares]
    lost = [-(size * share % sum(shares)) for share in shares]
    for group in sorted(range(len(shares)), key=lambda each: lost[each])[: size - sum(places)]:
        places[group] += 1
    return places
