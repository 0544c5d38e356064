"""Cohorts of devices that have much to teach: many samples that the model still gets wrong. Pure.

The statistical utility is that of Oort (Lai et al., OSDI 2021): samples times the root mean square of their losses. We
draw with chances in proportion to it, where Oort cuts off and then draws, and bound it, because a device that claims a
huge loss or a great many samples must not own the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from sparsyedge.coordinator.rounds.lots import lot
from sparsyedge.coordinator.rounds.past import Past, figures_or_median, turns_first

__all__ = ["CEILING", "by_data", "chances"]

CEILING = 2.0
"""A device counts at most for this many times the median utility, whatever it claims."""
LEAST = 1e-3
"""And at least for this share of it: a loss of zero is no reason to ask a device only when its turn comes."""


def by_data(devices: Iterable[str], size: int, *, seed: int, round_number: int, past: Mapping[str, Past]) -> list[str]:
    """Drawn without putting back, the bounded utility being the chance, behind those whose turn it is.

    Devices that were never asked are the first whose turn it is: that is the exploration.
    """

    def lots(device: str) -> bytes:
        return lot(device, seed=seed, round_number=round_number)

    def place(device: str) -> tuple[float, bytes]:
        # The smallest of exponential times whose rates are the chances: a weighted draw (Efraimidis and Spirakis).
        drawn = lots(device)
        between = (int.from_bytes(drawn[:8], "big") + 1) / (2**64 + 1)
        return -math.log(between) / weights[device], drawn

    weights = chances(devices, past)
    return turns_first(sorted(weights, key=place), size, past, lots=lots)


def chances(devices: Iterable[str], past: Mapping[str, Past]) -> dict[str, float]:
    """What each device counts for in the draw, relative to the median; 1 without a report."""
    utilities, middle = figures_or_median(set(devices), _utility, past)
    if not 0 < middle < math.inf:
        return dict.fromkeys(utilities, 1.0)
    return {device: min(CEILING, max(LEAST, utility / middle)) for device, utility in utilities.items()}


def _utility(past: Past) -> float | None:
    if past.loss is None or math.isnan(past.loss):
        return None
    return past.samples * max(0.0, past.loss)
