"""Lots, and the policies that look at nothing else: every device counts alike."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from sparsyedge.coordinator.rounds.past import Past

__all__ = ["lot", "round_robin", "uniform"]


def uniform(
    devices: Iterable[str], size: int, *, seed: int, round_number: int, past: Mapping[str, Past] | None = None
) -> list[str]:
    """Every device has the same chance in every round.

    Each device's lot is a hash of seed, round and identity; the lowest lots win. One device that comes or goes changes
    one place in the cohort.
    """

    return sorted(set(devices), key=lambda device: lot(device, seed=seed, round_number=round_number))


def round_robin(
    devices: Iterable[str], size: int, *, seed: int, round_number: int, past: Mapping[str, Past] | None = None
) -> list[str]:
    """Devices take turns in name order; the seed sets the start."""
    ordered = sorted(set(devices))
    start = (seed + (round_number - 1) * size) % len(ordered) if ordered else 0
    return [*ordered[start:], *ordered[:start]]


def lot(device: str, *, seed: int, round_number: int) -> bytes:
    """The device's lot in a round of `uniform`."""
    return hashlib.sha256(f"{seed}/{round_number}/{device}".encode()).digest()
