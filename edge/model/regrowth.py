"""How many weights a layer exchanges when a mask moves: the same on devices, which vote, and in the coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

__all__ = ["regrow_counts"]


def regrow_counts(held: Mapping[str, int], share: Fraction, budget: int) -> dict[str, int]:
    """How many weights each layer may exchange, given how many it holds: a share, of the budget if it holds more.

    Together at most that share of the budget. Exact, so that all machines agree.
    """
    total = sum(held.values())
    scale = share if total <= budget else share * Fraction(budget, total)
    return {name: int(scale * count) for name, count in held.items()}
