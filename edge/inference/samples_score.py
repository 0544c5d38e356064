"""The loss and accuracy of a session's model on samples, batch by batch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sparsyedge.edge.data.dataset import Samples
from sparsyedge.edge.inference.eval_session import EvalSession
from sparsyedge.edge.inference.losses import RegressionErrors

__all__ = ["score_samples"]

BATCH = 50
"""Small enough that activations take less memory than the model does."""


def score_samples(
    session: EvalSession, samples: Samples, *, before_batch: Callable[[], None] = lambda: None
) -> tuple[float, float | None]:
    """The mean loss over all samples, and the share that the model gets right; None for a regression.

    Calls `before_batch` before each batch; it may raise to end the evaluation.
    """
    errors, loss_sum, right = RegressionErrors(), 0.0, 0
    for start in range(0, len(samples), BATCH):
        before_batch()
        x, y = samples.batch(np.arange(start, min(start + BATCH, len(samples))))
        loss, logits = session.evaluate(x, y)
        if samples.task == "regression":
            errors.add(logits, y)
        else:
            loss_sum += loss * len(y)
            right += int((logits.argmax(axis=1) == y).sum())
    if samples.task == "regression":
        return errors.mse, None
    return loss_sum / len(samples), right / len(samples)
