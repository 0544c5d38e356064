"""What one run of `sparsyedge bench attacks` left."""

from __future__ import annotations

import msgspec

__all__ = ["NO_ATTACK", "UNGUARDED", "Result", "Settings"]

NO_ATTACK = "none"
UNGUARDED = "unguarded"
"""No rule: the plain mean by whatever devices claim, as in simulations."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What all runs share; results of other settings are never mixed with these."""

    devices: int
    hostile: int
    rounds: int
    width: int
    learning_rate: float


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    rule: str
    attack: str
    seed: int
    settings: Settings
    test_accuracy: float
    """Of the last round."""
    global_sparsity: float
    refused: int
    model_id: str
    seconds: float
