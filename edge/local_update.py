"""What a method makes of a round on one device: the model that training starts from, and what is sent of the result."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparsyedge.edge.methods import Method
from sparsyedge.edge.prune import prune_global
from sparsyedge.edge.tensors import State

__all__ = ["finish_update", "needs_start", "start_state"]


def start_state(method: Method, received: State, *, prunable: Sequence[str], sparsity: float) -> State:
    """The model to train: the received one, pruned to this device's own target where groups have different ones.

    `sparsity` is `method.sparsity_of` the device in this round.
    """
    return prune_global(received, prunable, sparsity) if method.sparsities else received


def needs_start(method: Method) -> bool:
    """Whether `finish_update` must be given the model that training started from."""
    return method.uplink == "delta"


def finish_update(
    method: Method, trained: State, *, prunable: Sequence[str], sparsity: float, start: State | None = None
) -> State:
    """What is sent of a trained model: all of it, its largest weights, or its largest changes added to the start."""
    if method.uplink == "whole":
        return dict(trained)
    if method.uplink == "weights":
        return prune_global(trained, prunable, sparsity)
    if start is None:
        raise ValueError("changes are pruned against the model that training started from")
    changes = prune_global({name: trained[name] - start[name] for name in prunable}, prunable, sparsity)
    update = dict(trained)
    for name in prunable:
        # Where the change is kept, the trained value itself: start + (trained - start) may round to another.
        update[name] = np.where(changes[name] != 0, trained[name], start[name])
    return update
