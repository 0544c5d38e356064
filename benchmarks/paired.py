"""Paired comparison: runs that differ in one thing and share their seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Interval", "paired_difference"]

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean and where the true one lies, by Student's t; without an end where there are fewer than two pairs."""

    mean: float
    low: float
    high: float
    pairs: int

    @property
    def has_zero(self) -> bool:
        return self.low <= 0 <= self.high


def paired_difference(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """The mean of ours minus theirs, pair by pair, with a 95 % interval; there must be at least one pair."""
    # Imported on use: scipy takes a while to load.
    from scipy import stats

    differences = np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64)
    count, mean = differences.size, float(differences.mean())
    if count < 2:
        return Interval(mean, -math.inf, math.inf, count)
    margin = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1) * differences.std(ddof=1) / math.sqrt(count))
    return Interval(mean, mean - margin, mean + margin, count)
