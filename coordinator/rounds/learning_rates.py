"""The learning rate of each round."""

from __future__ import annotations

import math
import sys

__all__ = ["learning_rate"]


def learning_rate(round_number: int, rounds: int, *, start: float, end: float) -> float:
    """Exponential decay from `start` to `end`: round 1 is already a little below `start`, the last is `end`."""
    # Rates far enough apart have a ratio of zero, which has no logarithm. In float32 such an end rate is zero anyway.
    ratio = max(end / start, sys.float_info.min)
    return start * math.exp(round_number / rounds * math.log(ratio))
