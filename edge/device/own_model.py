"""Which model a device downloads: the round's, or the one of its group's own size where the task offers such."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from sparsyedge.edge.model.methods import Method
from sparsyedge.edge.protocol.messages import RoundTask

__all__ = ["with_own_model"]


def with_own_model(task: RoundTask, method: Method, device: str, *, round_number: int) -> RoundTask:
    """The task as this device reads it: with its group's model in place of the round's; unchanged if there is none.

    `round_number` is the round that begins with it. Updates still name the round's model: the coordinator knows of no
    other base.
    """
    if task.levels is UNSET:
        return task
    target = method.sparsity_of(device, round_number)
    for level in task.levels:
        if level.sparsity == target:
            return msgspec.structs.replace(task, model_id=level.model_id, model=level.model, deltas=())
    return task
