"""Checks that a step graph with an optimizer trains like torch's, over several steps.

Torch's model and optimizer walk on from step to step. Before each step the session gets their weights and memory, and
after it both must agree again: loss, weights, statistics and memory. As in agreement.py, a batch on which they do not
counts as one with other discrete choices, and we draw another.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from sparsyedge.edge.data.dataset import Labels
from sparsyedge.edge.errors import ArtifactError
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.model.training import OPTIMIZER_STEPS
from sparsyedge.edge.tensors import FloatArray, State
from sparsyedge.edge.training.augment import Mixed
from sparsyedge.edge.training.job_inputs import JobInputs, inputs_of
from sparsyedge.edge.training.session import Session
from sparsyedge.export.reference import derive_exponents, make_optimizer, optimizer_state, reference_step

__all__ = ["verify_training"]

STEPS = 5
MAX_BATCHES = 60
TOLERANCE = 3e-5
# A tensor that moves this little, beside the one that moves most, moves by rounding noise.
VANISHING = 1e-6
MIX = 0.75
LATE_ROUND = 2**31

Batch = tuple[FloatArray, Labels]


def verify_training(
    session: Session,
    model: nn.Module,
    manifest: Manifest,
    start: State,
    draw_batch: Callable[[], Batch],
    *,
    learning_rate: float,
) -> float:
    """The largest difference to torch over several steps from `start`; raises ArtifactError if they never agree.

    `model` is scratch space. Differences are relative to what a step changes.
    """
    walk = _Walk(session, model, manifest, start, learning_rate)
    errors: list[float] = []
    for _ in range(MAX_BATCHES):
        errors.append(walk.step(*draw_batch()))
        agreeing = [error for error in errors if error <= TOLERANCE]
        if len(agreeing) == STEPS:
            return max(agreeing)
    raise ArtifactError(
        f"the step graph agreed with torch's {manifest.training.optimizer} to {TOLERANCE:.0e} on {len(agreeing)} of "
        f"{MAX_BATCHES} batches, {STEPS} are needed (the closest was off by {min(errors):.0e}); do not use this export"
    )


class _Walk:
    """Torch's model and optimizer after the steps that agreed so far."""

    def __init__(self, session: Session, model: nn.Module, manifest: Manifest, start: State, rate: float) -> None:
        self._session = session
        self._manifest = manifest
        self._rate = rate
        self._batches = 0
        self._model = model
        self._model.load_state_dict({name: torch.from_numpy(value) for name, value in start.items()}, strict=False)
        self._optimizer = make_optimizer(model, manifest.method, manifest.training)

    def step(self, x: FloatArray, y: Labels) -> float:
        """Take a step on both sides; if they disagree, torch goes back. Returns the largest difference."""
        weights, memory = copy.deepcopy(self._model.state_dict()), copy.deepcopy(self._optimizer.state_dict())
        before, remembered = self._state(), self._memory()
        self._session.load(before)
        self._session.load_optimizer_state(remembered)
        mixed = Mixed(np.roll(y, 1), MIX) if self._manifest.training.mixup else None
        inputs = self._inputs(y)
        loss = self._session.train_step(x, y, self._rate, mixed, inputs=inputs)
        reference = reference_step(
            self._model,
            self._manifest.method,
            torch.from_numpy(x),
            torch.from_numpy(y),
            learning_rate=self._rate,
            # The session derived its own when it loaded these weights.
            exponents=derive_exponents(self._model, self._manifest.method, self._manifest.prunable),
            training=self._manifest.training,
            optimizer=self._optimizer,
            mixed=mixed,
            prunable=self._manifest.prunable,
            inputs=inputs,
        )
        error = max(
            abs(loss - reference.loss) / abs(reference.loss),
            _difference(self._session.state(), self._state(), before, self._precision()),
            _difference(self._session.optimizer_state(), self._memory(), {}, {}),
        )
        if not error <= TOLERANCE:
            self._model.load_state_dict(weights)
            self._optimizer.load_state_dict(memory)
        return error

    def _inputs(self, y: Labels) -> JobInputs:
        """What a step is told on a device with these labels, in turns in a first round and in a late one."""
        self._batches += 1
        return inputs_of(self._manifest, y, round_number=1 if self._batches % 2 else LATE_ROUND)

    def _state(self) -> State:
        found = self._model.state_dict()
        return {name: found[name].detach().numpy().copy() for name in self._manifest.shapes}

    def _memory(self) -> State:
        return optimizer_state(self._model, self._manifest.training, self._optimizer)

    def _precision(self) -> State:
        """By how much to count a difference in a weight.

        AdamW divides by the size of the gradient, which turns the rounding noise of one that vanishes into a whole
        step. So a difference counts by that size.
        """
        if self._manifest.training.optimizer != "adamw":
            return {}
        memory = self._memory()
        return {
            parameter.name: np.sqrt(memory[f"{parameter.name}.second_moment"].astype(np.float64))
            for parameter in self._manifest.parameters
            if parameter.trainable
        }


def _difference(ours: State, theirs: State, before: State, precision: State) -> float:
    """The largest difference among the tensors, relative to how far each one moved from `before`."""
    apart, moved = {}, {}
    for name, value in ours.items():
        if name == OPTIMIZER_STEPS:
            apart[name], moved[name] = float(np.abs(value - theirs[name]).max()), 1.0
            continue
        factor, wide = precision.get(name, np.float64(1)), theirs[name].astype(np.float64)
        apart[name] = float(np.linalg.norm((value - wide) * factor))
        # Rounding of the old value is part of the new one.
        moved[name] = float(np.linalg.norm((wide - before.get(name, np.float32(0))) * factor)) + 1e-2 * float(
            np.linalg.norm(wide * factor)
        )
    least = VANISHING * max(moved.values(), default=0.0)
    return max((apart[name] / moved[name] for name in ours if moved[name] > least), default=0.0)
