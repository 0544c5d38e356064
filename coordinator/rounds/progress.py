"""How far a run is: what a coordinator needs to go on after a restart."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["OpenRecord", "Progress"]


@dataclass(frozen=True, kw_only=True)
class OpenRecord:
    """A round that is open, or was when its coordinator died."""

    round: int
    cohort: tuple[str, ...]
    extensions: int
    opened_at: float
    accepted: dict[str, str]
    """The hash of each accepted update, by device."""
    learning_rate: float | None = None
    """What it was announced with."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run is; `model_id` is what the last closed round ended in, `base_model_id` what it started from."""

    closed_round: int
    model_id: str | None
    base_model_id: str | None
    closed_accepted: dict[str, str]
    open: OpenRecord | None
    first_round: int = 1
    """Of the present stretch."""
