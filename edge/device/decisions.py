"""Decides what a device does about a task; no I/O."""

from __future__ import annotations

import enum

from msgspec import UNSET

from sparsyedge.edge.protocol.messages import RoundTask

__all__ = ["Action", "decide"]


class Action(enum.Enum):
    """What a device does about a task."""

    WAIT = "wait"
    TRAIN = "train"
    EVALUATE = "evaluate"
    OFFER = "offer"
    LEAVE = "leave"


def decide(
    task: RoundTask, *, device: str, key: str, settled: str | None, pending: str | None, until_finished: bool
) -> Action:
    """Compare the task's key with those of the last settled task and the update on disk."""
    if task.state == "finished":
        return Action.LEAVE if until_finished else Action.WAIT
    if task.state != "open" or device not in task.cohort or key == settled:
        return Action.WAIT
    if task.evaluation is not UNSET:
        return Action.EVALUATE
    return Action.OFFER if key == pending else Action.TRAIN
