"""The loss and the figures of a model's answers, in numpy: what training minimises, and what people read."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.data.dataset import Labels, Task
from sparsyedge.edge.tensors import FloatArray

__all__ = ["RegressionErrors", "accuracy", "cross_entropy", "mean_loss", "mean_squared_error", "r_squared", "rmse"]


def mean_loss(task: Task, logits: FloatArray, labels: Labels) -> float:
    """The loss that the task trains with, over a batch: cross-entropy for classes, squared error for a regression."""
    return cross_entropy(logits, labels) if task == "classes" else mean_squared_error(logits, labels)


def cross_entropy(logits: FloatArray, labels: Labels) -> float:
    """The mean over the samples, as torch's cross_entropy; `labels` are class numbers."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    log_sums = np.log(np.exp(shifted).sum(axis=1))
    return float((log_sums - shifted[np.arange(len(labels)), labels]).mean())


def mean_squared_error(outputs: FloatArray, targets: Labels) -> float:
    """The mean over samples and outputs, as torch's mse_loss."""
    return float((_differences(outputs, targets) ** 2).mean())


def accuracy(logits: FloatArray, labels: Labels) -> float:
    """The share of samples whose class has the largest logit."""
    return float((logits.argmax(axis=1) == labels).mean())


def rmse(outputs: FloatArray, targets: Labels) -> float:
    """The root of the mean squared error, in the unit of the targets."""
    return math.sqrt(mean_squared_error(outputs, targets))


def r_squared(outputs: FloatArray, targets: Labels) -> float | None:
    """The share of the targets' variance that the outputs explain; None where targets do not vary."""
    errors = RegressionErrors()
    errors.add(outputs, targets)
    return errors.r_squared


class RegressionErrors:
    """Adds up the errors of a regression batch by batch; keeps four numbers per output."""

    def __init__(self) -> None:
        self.samples = 0
        self._squares = self._mean = self._spread = np.zeros(0)

    def add(self, outputs: FloatArray, targets: Labels) -> None:
        """Count one batch of (batch, outputs)."""
        values = targets.astype(np.float64)
        squares = (_differences(outputs, targets) ** 2).sum(axis=0)
        mean, spread = values.mean(axis=0), ((values - values.mean(axis=0)) ** 2).sum(axis=0)
        if not self.samples:
            self.samples, self._squares, self._mean, self._spread = len(values), squares, mean, spread
            return
        # Chan's rule joins the spreads of two batches; sums of squares would lose the digits of targets far from 0.
        total = self.samples + len(values)
        shift = mean - self._mean
        self._spread = self._spread + spread + shift**2 * (self.samples * len(values) / total)
        self._mean = self._mean + shift * (len(values) / total)
        self._squares = self._squares + squares
        self.samples = total

    @property
    def mse(self) -> float:
        """The mean squared error over samples and outputs: the loss. NaN before the first batch."""
        return float(self._squares.mean() / self.samples) if self.samples else math.nan

    @property
    def rmse(self) -> float:
        """Its root, in the unit of the targets."""
        return math.sqrt(self.mse)

    @property
    def r_squared(self) -> float | None:
        """The share of the variance explained, averaged over the outputs; None where a target does not vary."""
        if not self.samples or not (self._spread > 0).all():
            return None
        return float((1 - self._squares / self._spread).mean())


def _differences(outputs: FloatArray, targets: Labels) -> NDArray[np.float64]:
    # Equal shapes only: numpy would spread (batch, 1) over (batch,) and average the wrong numbers.
    if outputs.shape != targets.shape:
        raise ValueError(f"outputs of shape {outputs.shape} and targets of shape {targets.shape} differ")
    return outputs.astype(np.float64) - targets
