"""One local job: a device's samples through the session, epoch after epoch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from sparsyedge.edge.data.batches import epoch_order, split_batches
from sparsyedge.edge.data.dataset import Samples
from sparsyedge.edge.errors import TrainingError
from sparsyedge.edge.session import Session

__all__ = ["JobCancelled", "LocalJob", "Trained", "train"]


class JobCancelled(Exception):
    """The round went on without this job; its work is dropped."""


@dataclass(frozen=True)
class LocalJob:
    """What to train: with the same samples and model, the same job gives the same update."""

    device_id: str
    round_number: int
    seed: int
    epochs: int
    batch_size: int
    learning_rate: float


@dataclass(frozen=True)
class Trained:
    """What came of a job, or of its first epochs; the parameters are in the session."""

    epochs: int
    steps: int
    loss: float
    """Mean over the steps of the last epoch."""


def train(
    session: Session,
    samples: Samples,
    job: LocalJob,
    *,
    done: Trained | None = None,
    keep_going: Callable[[], bool] = lambda: True,
    on_epoch: Callable[[Trained], None] = lambda trained: None,
) -> Trained:
    """Run the job's epochs on the session; `keep_going` is asked before every step and ends the job when False.

    `done` says which epochs the session's parameters have behind them; `on_epoch` hears of every epoch that is finished
    while others are still to come.
    """
    trained = done or Trained(epochs=0, steps=0, loss=math.nan)
    while trained.epochs < job.epochs:
        if trained.epochs and trained is not done:
            on_epoch(trained)
        trained = _train_epoch(session, samples, job, trained, keep_going)
    return trained


def _train_epoch(
    session: Session, samples: Samples, job: LocalJob, before: Trained, keep_going: Callable[[], bool]
) -> Trained:
    order = epoch_order(
        len(samples), seed=job.seed, round_number=job.round_number, device_id=job.device_id, epoch=before.epochs
    )
    steps, losses = before.steps, []
    for indices in split_batches(order, job.batch_size):
        if not keep_going():
            raise JobCancelled(f"round {job.round_number} was left after {steps} steps")
        x, y = samples.batch(indices)
        losses.append(session.train_step(x, y, job.learning_rate))
        steps += 1
        if not math.isfinite(losses[-1]):
            raise TrainingError(
                f"loss became {losses[-1]} at step {steps} of round {job.round_number} with learning rate "
                f"{job.learning_rate:g}; lower the learning rate of the run"
            )
    return Trained(epochs=before.epochs + 1, steps=steps, loss=sum(losses) / len(losses))
