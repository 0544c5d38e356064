"""How many neighbours a device needs, from how many members may collude and how many may be lost."""

from __future__ import annotations

import math

from scipy.stats import hypergeom

from sparsyedge.edge.errors import ConfigError

__all__ = ["degree_and_threshold"]

SECURITY_BITS = 40
"""Colluding members open a device's secrets, or cut it off from the others, at most once in 2**40 sums."""
LOSS_BITS = 20
"""Lost devices make a sum fail at most once in 2**20 times, some million."""


def degree_and_threshold(devices: int, *, colluding: float, lost: float) -> tuple[int, int]:
    """The least even degree, and the threshold, for a cohort with these shares of colluding and of lost members.

    In a cohort that is too small for these odds, everybody is everybody's neighbour, and the threshold is as high as
    the losses allow: then bounds hold for certain, not only nearly always.
    """
    if colluding < 0 or lost < 0 or colluding + lost >= 0.5:
        raise ConfigError(f"colluding + lost = {colluding + lost:g}: more than half of the neighbours must be left")
    others = devices - 1
    for degree in range(4, others, 2):
        threshold = _threshold(degree, others, colluding, lost)
        if threshold is not None and _stays_connected(degree, devices, colluding + lost):
            return degree, threshold
    degree = others + others % 2
    threshold = others - math.ceil(lost * devices)
    least = max(others // 2 + 1, math.floor(colluding * devices) + 1)
    if threshold < least:
        raise ConfigError(
            f"{devices} devices are too few: without {lost:.0%} of them, {threshold} neighbours are left to open a "
            f"device's mask, and fewer than {least} could be colluding or open both its secrets"
        )
    return degree, threshold


def _threshold(degree: int, others: int, colluding: float, lost: float) -> int | None:
    """The least threshold that colluding neighbours do not reach; None if it may not be reached without the lost."""
    bad, gone = math.ceil(colluding * others), math.ceil(lost * others)
    most = 2.0**-SECURITY_BITS / (others + 1)
    threshold = max(degree // 2 + 1, int(hypergeom.isf(most, others, bad, degree)) + 1)
    fails = (others + 1) * hypergeom.sf(degree - threshold, others, gone, degree)
    return threshold if threshold <= degree and fails <= 2.0**-LOSS_BITS else None


def _stays_connected(degree: int, devices: int, missing: float) -> bool:
    """Whether no stretch of the ring as long as a device's reach is all colluding or lost."""
    return devices * missing ** (degree // 2) <= 2.0**-SECURITY_BITS
