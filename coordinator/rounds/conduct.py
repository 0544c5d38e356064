"""Devices that fail in round after round are left out for a while, and for longer each time. Pure.

One bad round is an accident; the same cause in three rounds is not. A device in quarantine is not drawn, unless there
are too few others; it comes back by itself, or when the operator releases it. An update that is accepted clears it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["STRIKES", "Cause", "Conduct", "is_out", "struck"]

STRIKES = 3
LONGEST_ROUNDS = 64

Cause = Literal["failed", "invalid", "silent", "wasted"]
"""It said that it failed; its update was refused; it sent none in its time; it wasted its uploads."""


@dataclass(frozen=True, kw_only=True)
class Conduct:
    """What went wrong with a device lately."""

    cause: Cause
    reason: str
    strikes: int
    """Rounds in which the same cause came up."""
    last_round: int
    until_round: int = 0
    """The round that it may take part in again; 0 where it was not left out."""


def struck(before: Conduct | None, cause: Cause, reason: str, *, round_number: int) -> Conduct:
    """The conduct of a device that has failed in a round; the same round counts once."""
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
