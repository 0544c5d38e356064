"""Who takes part in a round."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from sparsyedge.edge.methods import group_of

__all__ = ["sample_cohort"]


def sample_cohort(
    devices: Iterable[str], size: int, *, seed: int, round_number: int, shares: Sequence[int] = ()
) -> tuple[str, ...]:
    """At most `size` of the devices, in sorted order; a function of its arguments alone.

    Every device draws a lot of its own from seed, round and identity, and the lowest lots win. So one device that comes
    or goes changes one place of the cohort, and no generator's state has to survive a restart. Where a method has
    groups, each gets its share of the places first, as far as it has devices for them.
    """

    def lot(device: str) -> bytes:
        return hashlib.sha256(f"{seed}/{round_number}/{device}".encode()).digest()

    drawn = sorted(set(devices), key=lot)
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
