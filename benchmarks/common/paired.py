"""Means over runs with intervals; runs that share seeds and differ in one thing are compared in pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["CONFIDENCE", "Interval", "mean_interval", "paired_difference", "t_interval"]

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean with its Student's t interval, which is unbounded for fewer than two values."""

    mean: float
    low: float
    high: float
    count: int

    @property
    def half_width(self) -> float:
        return self.high - self.mean

    @property
    def has_zero(self) -> bool:
        return self.low <= 0 <= self.high


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean of one or more values, with a 95 % interval."""
    sample = np.asarray(values, dtype=np.float64)
    return t_interval(float(sample.mean()), float(sample.std(ddof=1)) if sample.size > 1 else 0.0, sample.size)


def t_interval(mean: float, deviation: float, count: int) -> Interval:
    """The 95 % interval of the mean of `count` values with this sample standard deviation."""
    # Imported here because scipy is slow to load.
    from scipy import stats

    if count < 2:
        return Interval(mean, -math.inf, math.inf, count)
    margin = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1) * deviation / math.sqrt(count))
    return Interval(mean, mean - margin, mean + margin, count)


def paired_difference(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """The mean of ours minus theirs over one or more pairs, with a 95 % interval."""
    return mean_interval([one - other for one, other in zip(ours, theirs, strict=True)])
