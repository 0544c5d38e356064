"""One local job: runs a device's samples through the session, epoch after epoch."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.data.batches import epoch_order, split_batches
from sparsyedge.edge.data.dataset import Samples
from sparsyedge.edge.errors import DataError, TrainingError
from sparsyedge.edge.model.training import PLAIN_SGD, Training
from sparsyedge.edge.training.augment import StepKey, augment, background
from sparsyedge.edge.training.job_inputs import NO_INPUTS, JobInputs
from sparsyedge.edge.training.session import Session

__all__ = ["BeforeStep", "JobCancelled", "LocalJob", "OnStep", "Trained", "first_batch", "train"]

log = logging.getLogger(__name__)

Indices = NDArray[np.int64]


class JobCancelled(Exception):
    """The round moved on without this job; we drop its work."""


@dataclass(frozen=True)
class LocalJob:
    """The training job. The same job on the same samples and model gives the same update."""

    device_id: str
    round_number: int
    seed: int
    epochs: int
    batch_size: int
    learning_rate: float
    training: Training = PLAIN_SGD
    """How samples change before a step; the session does the rest of it."""
    inputs: JobInputs = NO_INPUTS


@dataclass(frozen=True)
class Trained:
    """The result of a job, or of its first epochs; the parameters are in the session."""

    epochs: int
    steps: int
    loss: float
    """Mean over the steps of the last epoch."""
    loss_rms: float | None = None
    """Root mean square over the same steps; None if nobody took it."""


BeforeStep = Callable[[int, int], None]
"""Called with the step's number, from 0, and the epoch's number of steps; may change the session's model."""

OnStep = Callable[[int, int, Sequence[float]], None]
"""Called after each step with the steps done, all steps of the job, and the epoch's losses so far; must be quick."""


def train(
    session: Session,
    samples: Samples,
    job: LocalJob,
    *,
    done: Trained | None = None,
    keep_going: Callable[[], bool] = lambda: True,
    on_epoch: Callable[[Trained], None] = lambda trained: None,
    on_step: OnStep | None = None,
    before_step: BeforeStep | None = None,
    smallest_plane: int | None = None,
) -> Trained:
    """Run the job's epochs on the session; checks `keep_going` before every step and ends the job if it returns False.

    `done` says which epochs the session's parameters already include. `on_epoch` is called after every epoch but the
    last. `smallest_plane` is the fewest positions per sample that any BatchNorm sees; None: there is none.
    """
    trained = done or Trained(epochs=0, steps=0, loss=math.nan)
    while trained.epochs < job.epochs:
        if trained.epochs and trained is not done:
            on_epoch(trained)
        trained = _train_epoch(
            session,
            samples,
            job,
            trained,
            keep_going=keep_going,
            on_step=on_step,
            before_step=before_step,
            smallest_plane=smallest_plane,
        )
    return trained


def first_batch(samples: Samples, job: LocalJob, *, smallest_plane: int | None) -> Indices:
    """The samples of the job's first step."""
    order = epoch_order(len(samples), seed=job.seed, round_number=job.round_number, device_id=job.device_id, epoch=0)
    return _trainable(split_batches(order, job.batch_size), job, smallest_plane=smallest_plane)[0]


def _train_epoch(
    session: Session,
    samples: Samples,
    job: LocalJob,
    before: Trained,
    *,
    keep_going: Callable[[], bool],
    on_step: OnStep | None,
    before_step: BeforeStep | None,
    smallest_plane: int | None,
) -> Trained:
    order = epoch_order(
        len(samples), seed=job.seed, round_number=job.round_number, device_id=job.device_id, epoch=before.epochs
    )
    identity = job.seed, job.round_number, job.device_id
    steps, losses = before.steps, []
    batches = _trainable(split_batches(order, job.batch_size), job, smallest_plane=smallest_plane)
    all_steps = before.steps + (job.epochs - before.epochs) * len(batches)
    for number, indices in enumerate(batches):
        if not keep_going():
            raise JobCancelled(f"round {job.round_number} was abandoned after {steps} steps")
        if before_step is not None:
            before_step(number, len(batches))
        losses.append(_train_step(session, samples, indices, job, StepKey(*identity, before.epochs, number)))
        steps += 1
        if not math.isfinite(losses[-1]):
            raise TrainingError(
                f"loss became {losses[-1]} at step {steps} of round {job.round_number} with learning rate "
                f"{job.learning_rate:g}; lower the learning rate of the run"
            )
        if on_step is not None:
            on_step(steps, all_steps, losses)
    rms = math.sqrt(sum(loss * loss for loss in losses) / len(losses))
    return Trained(epochs=before.epochs + 1, steps=steps, loss=sum(losses) / len(losses), loss_rms=rms)


def _train_step(session: Session, samples: Samples, indices: Indices, job: LocalJob, key: StepKey) -> float:
    x, y = samples.batch(indices)
    if not job.training.augments:
        return session.train_step(x, y, job.learning_rate, seed=key.number(), inputs=job.inputs)
    x, y, mixed = augment(job.training, x, y, key, fill=background(samples.x.dtype))
    return session.train_step(x, y, job.learning_rate, mixed, key.number(), job.inputs)


def _trainable(batches: list[Indices], job: LocalJob, *, smallest_plane: int | None) -> list[Indices]:
    """The batches that BatchNorm can use: one sample alone gives poor statistics, and one position gives none."""
    larger = [indices for indices in batches if len(indices) > 1]
    if smallest_plane is None or len(larger) == len(batches):
        return batches
    if larger:
        log.warning(
            "round %d: %d of %d batches hold one sample and are skipped, since BatchNorm needs more",
            job.round_number,
            len(batches) - len(larger),
            len(batches),
        )
        return larger
    if smallest_plane == 1:
        raise DataError(
            "all batches hold one sample, and a BatchNorm of this model sees one position of it; "
            "give the device more samples, or the run a `batch_size` of at least 2"
        )
    log.warning("round %d: batches of one sample; BatchNorm normalises each by itself", job.round_number)
    return batches
