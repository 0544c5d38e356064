"""Quarantine: a device that fails in round after round sits out for a while, longer each time. Pure.

One bad round is an accident; the same cause in three rounds is not. The draw skips a device in quarantine unless too
few others are ready. Quarantine ends by itself, or when the operator releases the device. An accepted update clears the
record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["STRIKES", "Cause", "Conduct", "is_out", "struck"]

STRIKES = 3
LONGEST_ROUNDS = 64

Cause = Literal["failed", "invalid", "silent", "wasted"]
"""The device reported a failure; we refused its update; it sent none before its deadline; it wasted upload places."""


@dataclass(frozen=True, kw_only=True)
class Conduct:
    """A device's recent failures."""

    cause: Cause
    reason: str
    strikes: int
    """Consecutive failures with the same cause."""
    last_round: int
    until_round: int = 0
    """First round it may join again; 0 if it is not in quarantine."""


def struck(before: Conduct | None, cause: Cause, reason: str, *, round_number: int) -> Conduct:
    """Add a failure; each round counts once."""
    if before is not None and before.last_round == round_number:
        return before
    strikes = before.strikes + 1 if before is not None and before.cause == cause else 1
    left_out = min(LONGEST_ROUNDS, 2 ** (strikes - STRIKES + 1)) if strikes >= STRIKES else 0
    return Conduct(
        cause=cause,
        reason=reason,
        strikes=strikes,
        last_round=round_number,
        until_round=round_number + 1 + left_out if left_out else 0,
    )


def is_out(conduct: Mapping[str, Conduct], device: str, *, round_number: int) -> bool:
    """Whether the device is in quarantine in this round."""
    return device in conduct and round_number < conduct[device].until_round
