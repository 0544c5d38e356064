"""How long a round waits for each device: learned from the device's own past, so that a slow one is not punished and a
fast one that is gone is not waited for. No I/O.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

__all__ = [
    "FIRST_S",
    "KEPT_TIMES",
    "OFFLINE_GRACE_S",
    "PROBATION_MARGIN",
    "PROBATION_ROUNDS",
    "newcomer_s",
    "on_probation",
    "patience_s",
    "probation_s",
    "remember",
]

FIRST_S = 7200.0
"""For a device that has never answered: an epoch of half an hour, with plenty to spare."""
LEAST_S = 60.0
MOST_S = 7 * 86_400.0
MARGIN = 2.0
PERCENTILE = 0.9
KEPT_TIMES = 10
OFFLINE_GRACE_S = 60.0
"""A member that is offline for so long is not waited for any more, where enough others have answered."""
NEWCOMER_MARGIN = 5.0
PROBATION_MARGIN = 1.25
"""What a member that keeps a round waiting in vain may make of its time, at most."""
PROBATION_ROUNDS = 10
"""So many rounds a device is on probation after one that it has missed, even where it answers in between."""


def patience_s(times: Sequence[float]) -> float:
    """Twice what the device needed at worst in nine of ten of its last rounds, within bounds."""
    return min(MOST_S, max(LEAST_S, MARGIN * _typical_s(times))) if times else FIRST_S


def newcomer_s(slowest_s: float) -> float:
    """For a device that has never answered, where enough others have, the slowest of them after `slowest_s`."""
    return max(LEAST_S, NEWCOMER_MARGIN * slowest_s)


def probation_s(times: Sequence[float], slowest_s: float) -> float:
    """For a device that has lately kept a round waiting in vain, where enough others have answered."""
    return PROBATION_MARGIN * max(slowest_s, _typical_s(times) if times else 0.0)


def on_probation(missed: Mapping[str, int], device: str, *, round_number: int) -> bool:
    """Whether a device has missed one of the last rounds, given the last one that each has missed."""
    return device in missed and round_number - missed[device] <= PROBATION_ROUNDS


def _typical_s(times: Sequence[float]) -> float:
    return sorted(times)[math.ceil(PERCENTILE * len(times)) - 1]


def remember(history: Mapping[str, tuple[float, ...]], device: str, seconds: float) -> dict[str, tuple[float, ...]]:
    """The history with one more time, the oldest ones forgotten."""
    return {**history, device: (*history.get(device, ()), seconds)[-KEPT_TIMES:]}
