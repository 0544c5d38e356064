"""The result of one run of `sparsyedge bench attacks`."""

from __future__ import annotations

import msgspec

__all__ = ["NO_ATTACK", "UNGUARDED", "Result", "Settings"]

NO_ATTACK = "none"
UNGUARDED = "unguarded"
"""No rule: the plain mean, weighted by the samples that devices claim, as in simulations."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that all runs share; results with other settings are refused."""

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
    """In the last round."""
    global_sparsity: float
    refused: int
    model_id: str
    seconds: float
