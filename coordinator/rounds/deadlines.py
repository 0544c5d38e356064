"""How long a round waits for each device: learned from the device's own past, so that a slow one is not punished and a
fast one that is gone is not waited for. No I/O.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

__all__ = ["FIRST_S", "KEPT_TIMES", "OFFLINE_GRACE_S", "patience_s", "remember", "unanswered_s"]

FIRST_S = 7200.0
"""For a device that has never answered: an epoch of half an hour, with plenty to spare."""
LEAST_S = 60.0
MOST_S = 7 * 86_400.0
MARGIN = 2.0
PERCENTILE = 0.9
KEPT_TIMES = 10
OFFLINE_GRACE_S = 60.0
"""A member that is offline for so long is not waited for any more, where enough others have answered."""


def patience_s(times: Sequence[float]) -> float:
    """Twice what the device needed at worst in nine of ten of its last rounds, within bounds."""
    if not times:
        return FIRST_S
    ordered = sorted(times)
    typical_s = ordered[math.ceil(PERCENTILE * len(ordered)) - 1]
    return min(MOST_S, max(LEAST_S, MARGIN * typical_s))


def remember(history: Mapping[str, tuple[float, ...]], device: str, seconds: float) -> dict[str, tuple[float, ...]]:
    """The history with one more time, the oldest ones forgotten."""
    return {**history, device: (*history.get(device, ()), seconds)[-KEPT_TIMES:]}


def unanswered_s(elapsed_s: float) -> float:
    """What a device is taken to need that had not answered by then; one that hangs is not waited for ever longer."""
    return min(elapsed_s, FIRST_S / MARGIN)
