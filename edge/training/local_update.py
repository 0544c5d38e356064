"""What a method does around training on one device: prepares the start model, and prunes the result to send."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from sparsyedge.edge.model.allocation import prune_model
from sparsyedge.edge.model.methods import Method
from sparsyedge.edge.model.prune import keep_largest, prune_global
from sparsyedge.edge.tensors import State
from sparsyedge.edge.training.session import Session
from sparsyedge.edge.training.trainer import BeforeStep, LocalJob

__all__ = ["exchange_weights", "finish_update", "needs_start", "start_state", "step_rule"]

GROWN = np.float32(1e-8)
"""The start value of a weight that enters the mask: negligible to the network, but not zero."""


def start_state(
    method: Method,
    received: State,
    *,
    prunable: Sequence[str],
    sparsity: float,
    positions: Mapping[str, int] | None = None,
) -> State:
    """The model to train: the received one, pruned to this device's own target if groups have different ones.

    `sparsity` is `method.sparsity_of` the device in this round, `positions` as in `prune_model`.
    """
    return prune_model(method, received, prunable, sparsity, positions=positions) if method.sparsities else received


def needs_start(method: Method) -> bool:
    """Whether `finish_update` needs the model that training started from."""
    return method.uplink == "delta"


def finish_update(
    method: Method,
    trained: State,
    *,
    prunable: Sequence[str],
    sparsity: float,
    start: State | None = None,
    positions: Mapping[str, int] | None = None,
) -> State:
    """The update to send: the whole trained model, its largest weights, or its largest changes added to the start."""
    if method.uplink == "whole":
        return dict(trained)
    if method.uplink == "weights":
        return prune_model(method, trained, prunable, sparsity, positions=positions)
    if start is None:
        raise ValueError("changes are pruned against the model that training started from")
    changes = prune_global({name: trained[name] - start[name] for name in prunable}, prunable, sparsity)
    update = dict(trained)
    for name in prunable:
        # For a kept change, take the trained value itself: start + (trained - start) may round differently.
        update[name] = np.where(changes[name] != 0, trained[name], start[name])
    return update


def step_rule(method: Method, session: Session, prunable: Sequence[str], job: LocalJob) -> BeforeStep | None:
    """What the method does to the session's model between steps; None if nothing in this round."""
    if method.prune_weights == "in-place":
        _, *others = prunable

        def prune(number: int, steps: int) -> None:
            state = session.state()
            _change_model(session, state | {name: keep_largest(state[name], method.density) for name in others})

        return prune
    if method.evolves_mask(job.round_number):

        def exchange(number: int, steps: int) -> None:
            if number == steps // 2:
                seed = [job.seed, job.round_number, int.from_bytes(hashlib.sha256(job.device_id.encode()).digest()[:8])]
                _change_model(session, exchange_weights(session.state(), prunable, method.regrow_rate, seed=seed))

        return exchange
    return None


def _change_model(session: Session, state: State) -> None:
    """Give the session another model in the middle of a round; the optimizer forgets only what has left the mask."""
    memory = session.optimizer_state()
    session.load(state)
    session.load_optimizer_state(memory)


def exchange_weights(state: State, prunable: Sequence[str], rate: float, *, seed: Sequence[int]) -> State:
    """A copy of the state in which each layer drops a share `rate` of its weights, the smallest, and grows as many.

    The new places are drawn at random from all free ones. The number of non-zeros stays the same.
    """
    stream = np.random.Generator(np.random.PCG64(list(seed)))
    changed = dict(state)
    for name in prunable:
        tensor = state[name].reshape(-1).copy()
        present = np.flatnonzero(tensor)
        count = int(rate * present.size)
        # Among equal magnitudes the first go: a stable order does not depend on the machine.
        tensor[present[np.argsort(np.abs(tensor[present]), kind="stable")[:count]]] = 0
        free = np.flatnonzero(tensor == 0)
        tensor[free[np.argsort(stream.random(free.size), kind="stable")[:count]]] = GROWN
        changed[name] = tensor.reshape(state[name].shape)
    return changed
