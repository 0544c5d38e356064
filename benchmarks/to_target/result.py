"""The result of one run of `sparsyedge bench to-target`, and the rule for when a target is held."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec

from sparsyedge.edge.wire.codecs import Codec

__all__ = ["RULE", "Point", "Result", "Settings", "held_round"]

RULE = (
    "held: an evaluation and the next one reach the target; the cost is that of all rounds up to the first of the two"
)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that all runs share; results with other settings are refused."""

    dataset: str
    target: float
    devices: int
    cohort: int
    rounds: int
    epochs: int
    model: str
    width: int
    alpha: float
    learning_rate: float
    last_learning_rate: float
    codec: Codec
    meter: str
    threads: int


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run was after a round; everything but the accuracy is the sum so far, over all devices."""

    round: int
    accuracy: float | None
    """Of the global model on the test part; None in a round without evaluation."""
    bytes_down: int
    bytes_up: int
    seconds: float
    """Of each round's slowest device: what a fleet of such machines would take, without links and coordinator."""
    device_s: float
    """Of all devices, one after the other."""
    joules: float | None
    """Of all devices' phases; None without a meter."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One run, up to the round that showed the target to be held, perhaps one more, or to its last."""

    method: str
    seed: int
    settings: Settings
    held_round: int | None
    """The round whose model reached the target and kept it; None if no round did."""
    points: tuple[Point, ...]
    energy_source: str
    energy_kind: str
    energy_hz: float
    model_id: str
    machine: dict[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def cost(self) -> Point | None:
        """What it took to hold the target; None if the run never did."""
        return next((point for point in self.points if point.round == self.held_round), None)

    @property
    def best(self) -> float:
        """The best accuracy of any evaluation."""
        return max((point.accuracy for point in self.points if point.accuracy is not None), default=0.0)


def held_round(accuracies: Sequence[tuple[int, float | None]], target: float) -> int | None:
    """The first round whose evaluation reaches the target and whose next evaluation does, too."""
    known = [(number, accuracy) for number, accuracy in accuracies if accuracy is not None]
    return next((one[0] for one, after in pairwise(known) if min(one[1], after[1]) >= target), None)
