"""Cohorts that cost few joules: the devices that train a sample for least come first. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sparsyedge.coordinator.rounds.lots import lot
from sparsyedge.coordinator.rounds.past import Past, figures_or_median, turns_first

__all__ = ["by_energy"]


def by_energy(
    devices: Iterable[str], size: int, *, seed: int, round_number: int, past: Mapping[str, Past]
) -> list[str]:
    """The fewest joules per sample first, behind those whose turn it is; lots decide between equals.

    A device without a meter, or without a report yet, stands where the median does. A false report of next to nothing
    gets a device into every cohort; there it has one update like all others.
    """

    def lots(device: str) -> bytes:
        return lot(device, seed=seed, round_number=round_number)

    joules, _ = figures_or_median(set(devices), lambda one: one.joules_per_sample, past)
    order = sorted(joules, key=lambda device: (joules[device], lots(device)))
    return turns_first(order, size, past, lots=lots)
