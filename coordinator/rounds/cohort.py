"""Picks the cohort of a round. A policy depends on its arguments alone, so a restart need not restore any generator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Protocol

from sparsyedge.coordinator.rounds.balanced import balanced_cohort
from sparsyedge.coordinator.rounds.by_data import by_data
from sparsyedge.coordinator.rounds.by_energy import by_energy
from sparsyedge.coordinator.rounds.by_speed import by_speed
from sparsyedge.coordinator.rounds.lots import round_robin, uniform
from sparsyedge.coordinator.rounds.past import Past
from sparsyedge.edge.model.methods import group_of

__all__ = ["FROM_RECORDS", "POLICIES", "Policy", "Selection", "sample_cohort"]

Policy = Literal["uniform", "round-robin", "balanced", "energy", "fast", "data"]


class Selection(Protocol):
    """Orders the devices of a round; the first ones are chosen. `past` is what is on record of them."""

    def __call__(
        self, devices: Iterable[str], size: int, *, seed: int, round_number: int, past: Mapping[str, Past]
    ) -> list[str]: ...


POLICIES: dict[Policy, Selection] = {
    "uniform": uniform,
    "round-robin": round_robin,
    "balanced": uniform,
    "energy": by_energy,
    "fast": by_speed,
    "data": by_data,
}
"""Lots also fill the places that are left in a cohort of `balanced`."""

FROM_RECORDS: frozenset[Policy] = frozenset({"energy", "fast", "data"})
"""The policies that look at what is on record of devices."""


def sample_cohort(
    devices: Iterable[str],
    size: int,
    *,
    seed: int,
    round_number: int,
    shares: Sequence[int] = (),
    policy: Policy = "uniform",
    classes: Mapping[str, bytes] | None = None,
    past: Mapping[str, Past] | None = None,
) -> tuple[str, ...]:
    """Pick at most `size` devices by the given policy; returns them sorted.

    If the method has groups, each group fills its share of the places first. Places it cannot fill go to the others.
    `classes` says which classes devices have; only `balanced` asks for it. `past` is what is on record of them, for
    the policies of `FROM_RECORDS`.
    """
    drawn = POLICIES[policy](devices, size, seed=seed, round_number=round_number, past=past or {})
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
