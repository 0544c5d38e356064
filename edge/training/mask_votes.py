"""How devices say which weights a mask should have: by the gradient of one batch, as entries of an update.

A vote is a non-zero entry. So it travels, is bounded, checked, recorded and counted like any other, and survives what
an update survives. The gradient is read off one step with the rate 1, which is taken back by loading another model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sparsyedge.edge.data.dataset import Samples
from sparsyedge.edge.errors import TrainingError
from sparsyedge.edge.model.allocation import prune_model
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.model.prune import removed_count
from sparsyedge.edge.model.regrowth import regrow_counts
from sparsyedge.edge.tensors import FloatArray, State, Tensors, first_nonfinite
from sparsyedge.edge.training.session import Session
from sparsyedge.edge.training.trainer import LocalJob, Trained, first_batch

__all__ = ["StartVotes", "vote_for_regrowth", "vote_for_start"]

PROBE_RATE = 1.0
PROBED = np.float32(1e-8)
"""What stands for a zero whose gradient is asked for: with powers, a zero has none. It is negligible to the network."""


class StartVotes(NamedTuple):
    """The model that a session held, with the weights that the device votes for alone."""

    state: State
    trained: Trained


def vote_for_start(session: Session, samples: Samples, job: LocalJob, manifest: Manifest) -> StartVotes:
    """Vote for the weights whose removal would change the loss of one batch most, by |w dL/dw|: as many as the target
    leaves, shared among layers as the method prunes.

    Leaves the session with another model.
    """
    method = manifest.method
    state = session.state()
    loss, gradients = _probe(session, state, samples, job, manifest)
    # w dL/dw is beta times theta dL/dtheta, so the order is that of the network's own weights.
    saliencies = {name: np.abs(state[name] * gradient) for name, gradient in gradients.items()}
    chosen = prune_model(method, saliencies, manifest.prunable, method.sparsity, positions=manifest.positions)
    voted = {name: np.where(chosen[name] != 0, state[name], np.float32(0)) for name in manifest.prunable}
    return StartVotes(state | voted, Trained(epochs=job.epochs, steps=1, loss=loss))


def vote_for_regrowth(
    session: Session, samples: Samples, job: LocalJob, manifest: Manifest, *, base: Tensors, state: State
) -> State:
    """The update `state` with votes for zeros of the round's model `base`: those with the largest gradients in a layer.

    Takes one dense step. A vote is an entry where the base has none. Its sign is the way in which the loss falls; its
    size is the same for all, so that votes against each other cancel out in a mean. Leaves the session with another
    model.
    """
    method, names = manifest.method, manifest.prunable
    filled = state | {name: np.where(state[name] == 0, PROBED, state[name]) for name in names}
    session.load(filled)
    _, gradients = _probe(session, filled, samples, job, manifest)
    sizes = {name: base[name].size for name in names}
    budget = sum(sizes.values()) - removed_count(sum(sizes.values()), method.sparsity)
    held = {name: int(np.count_nonzero(base[name])) for name in names}
    counts = regrow_counts(held, method.regrown_share(job.round_number), budget)
    size = _vote_size(base, names)
    return state | {name: _vote(state[name], base[name], gradients[name], counts[name], size) for name in names}


def _vote(state: FloatArray, base: FloatArray, gradient: FloatArray, count: int, size: np.float32) -> FloatArray:
    """A layer's update with up to `count` votes."""
    rows = base.reshape(len(base), -1)
    # Where an output has no weight left, BatchNorm divides by almost nothing: its gradients are large for no reason.
    alive = np.repeat(np.any(rows != 0, axis=1), rows.shape[1])
    free = np.flatnonzero((rows.reshape(-1) == 0) & alive & (gradient.reshape(-1) != 0))
    steepest = np.argsort(-np.abs(gradient.reshape(-1)[free]), kind="stable")[:count]
    voted = state.copy()
    voted.reshape(-1)[free[steepest]] = -np.sign(gradient.reshape(-1)[free[steepest]]) * size
    return voted


def _vote_size(base: Tensors, names: Sequence[str]) -> np.float32:
    """About the mean magnitude of a weight: no codec rounds that to zero. A power of two, so that none changes it."""
    total = sum(float(np.abs(base[name]).sum(dtype=np.float64)) for name in names)
    mean = total / max(1, sum(int(np.count_nonzero(base[name])) for name in names))
    return np.float32(2.0 ** math.floor(math.log2(mean))) if mean > 0 else np.float32(1)


def _probe(session: Session, state: State, samples: Samples, job: LocalJob, manifest: Manifest) -> tuple[float, State]:
    """The loss of one batch at `state`, which the session holds, and the gradients of the prunable weights."""
    plane = min((norm.plane for norm in manifest.batch_norms), default=None)
    x, y = samples.batch(first_batch(samples, job, smallest_plane=plane))
    loss = session.train_step(x, y, PROBE_RATE, inputs=job.inputs)
    after = session.state()
    decay = np.float32(manifest.method.weight_decay)
    gradients = {
        name: (state[name] - after[name]) / np.float32(PROBE_RATE) - decay * state[name] for name in manifest.prunable
    }
    bad = first_nonfinite(gradients)
    if bad is not None or not math.isfinite(loss):
        raise TrainingError(
            f"round {job.round_number}: one batch gives the loss {loss} and no finite gradient of {bad or 'it'}; the "
            f"model or this device's data is broken"
        )
    return loss, gradients
