"""How long a round waits for each device. No I/O.

Deadlines come from each device's own past: a slow device gets the time it needs, and a fast one that vanished does not
hold up the round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from sparsyedge.coordinator.rounds.table import Table

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
"""For a device that never answered yet: enough for an epoch of half an hour, with plenty to spare."""
LEAST_S = 60.0
MOST_S = 7 * 86_400.0
MARGIN = 2.0
PERCENTILE = 0.9
KEPT_TIMES = 10
OFFLINE_GRACE_S = 60.0
"""Once enough others have answered, a round stops waiting for a member that has been offline this long."""
NEWCOMER_MARGIN = 5.0
PROBATION_MARGIN = 1.25
"""Time for a member on probation, as a multiple of the slowest answer or its own usual time."""
PROBATION_ROUNDS = 10
"""A missed round puts a device on probation for this many rounds, even if it answers in between."""


def patience_s(times: Sequence[float]) -> float:
    """Twice the 90th percentile of the device's recent times, within bounds."""
    return min(MOST_S, max(LEAST_S, MARGIN * _typical_s(times))) if times else FIRST_S


def newcomer_s(slowest_s: float) -> float:
    """Limit for a device that never answered yet, once enough others have; the slowest of them took `slowest_s`."""
    return max(LEAST_S, NEWCOMER_MARGIN * slowest_s)


def probation_s(times: Sequence[float], slowest_s: float) -> float:
    """Limit for a device on probation, once enough others have answered."""
    return PROBATION_MARGIN * max(slowest_s, _typical_s(times) if times else 0.0)


def on_probation(missed: Mapping[str, int], device: str, *, round_number: int) -> bool:
    """Whether the device missed a recent round; `missed` maps each device to the last round it missed."""
    return device in missed and round_number - missed[device] <= PROBATION_ROUNDS


def _typical_s(times: Sequence[float]) -> float:
    return sorted(times)[math.ceil(PERCENTILE * len(times)) - 1]


def remember(history: Table[tuple[float, ...]], device: str, seconds: float) -> Table[tuple[float, ...]]:
    """Add a time to the history and drop the oldest."""
    return history.set(device, (*history.get(device, ()), seconds)[-KEPT_TIMES:])
