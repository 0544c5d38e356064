"""The learning rate of each round."""

from __future__ import annotations

import math

__all__ = ["learning_rate"]


def learning_rate(round_number: int, rounds: int, *, start: float, end: float) -> float:
    """Exponential decay from `start` to `end`: round 1 is already a little below `start`, the last is `end`."""
    return start * math.exp(round_number / rounds * math.log(end / start))
