"""Cohorts of devices that take about equally long, so that a round is not as slow as the fleet's slowest. Pure.

Devices are divided into tiers by how long they were at work; a lot draws the round's tier, and lots draw its members.
All tiers have the same size and chance, so a device has the same chance in every tier: no report, true or false, makes
a device more likely to be asked.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping

from sparsyedge.coordinator.rounds.lots import lot
from sparsyedge.coordinator.rounds.past import NOTHING, Past

__all__ = ["TIERS", "by_speed"]

TIERS = 5
"""At most; every tier has enough devices for a cohort."""


def by_speed(devices: Iterable[str], size: int, *, seed: int, round_number: int, past: Mapping[str, Past]) -> list[str]:
    """The devices of one tier by lot, then those nearest to it.

    A device without a report counts as slower than all others: it may be, and there it holds nobody up.
    """

    def lots(device: str) -> bytes:
        return lot(device, seed=seed, round_number=round_number)

    def seconds(device: str) -> float:
        found = past.get(device, NOTHING).seconds
        return math.inf if found is None else found

    order = sorted(set(devices), key=lambda device: (seconds(device), lots(device)))
    tiers = max(1, min(TIERS, len(order) // size))
    tier = _drawn(tiers, seed=seed, round_number=round_number)
    start, end = len(order) * tier // tiers, len(order) * (tier + 1) // tiers
    distance = {device: max(start - place, place - end + 1, 0) for place, device in enumerate(order)}
    return sorted(order, key=lambda device: (distance[device], lots(device)))


def _drawn(tiers: int, *, seed: int, round_number: int) -> int:
    digest = hashlib.sha256(f"{seed}/{round_number}/tier".encode()).digest()
    return int.from_bytes(digest[:8], "big") % tiers
