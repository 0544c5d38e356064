"""A run's progress: what a coordinator needs to resume after a restart."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["OpenRecord", "Progress"]


@dataclass(frozen=True, kw_only=True)
class OpenRecord:
    """A round that is open, or was open when its coordinator died."""

    round: int
    cohort: tuple[str, ...]
    extensions: int
    opened_at: float
    accepted: dict[str, str]
    """The hash of each accepted update, by device."""
    learning_rate: float | None = None
    """The rate in the round's announcement."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A run's progress; the last closed round started from `base_model_id` and produced `model_id`."""

    closed_round: int
    model_id: str | None
    base_model_id: str | None
    closed_accepted: dict[str, str]
    open: OpenRecord | None
    first_round: int = 1
    """First round of the current stretch."""
