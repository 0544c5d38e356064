"""How good a global model is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from sparsyedge.coordinator.records import Evaluation
from sparsyedge.edge.artifacts import Manifest
from sparsyedge.edge.data import Dataset, Samples
from sparsyedge.edge.dense_session import DenseSession
from sparsyedge.edge.errors import DataError
from sparsyedge.edge.tensors import FloatArray, State, count_nonzero

__all__ = ["Evaluator", "check_fit", "global_sparsity"]

EVALUATION_BATCH = 250


class Evaluator:
    """Evaluates states on one set of samples."""

    def __init__(self, session: DenseSession, samples: Samples) -> None:
        self._session = session
        self._samples = samples

    def __call__(self, state: State) -> Evaluation:
        """Accuracy and loss of the state over all samples, by its running statistics."""
        self._session.load(state)
        correct, loss_sum = 0, 0.0
        for start in range(0, len(self._samples), EVALUATION_BATCH):
            stop = min(start + EVALUATION_BATCH, len(self._samples))
            x, y = self._samples.batch(np.arange(start, stop))
            loss, logits = self._session.evaluate(x, y)
            correct += int(np.count_nonzero(logits.argmax(axis=1) == y))
            loss_sum += loss * len(y)
        return Evaluation(correct / len(self._samples), loss_sum / len(self._samples))


def global_sparsity(state: Mapping[str, FloatArray], prunable: Iterable[str]) -> float:
    """The share of prunable weights that are exactly zero."""
    names = tuple(prunable)
    size = sum(state[name].size for name in names)
    return 1.0 - count_nonzero(state, names) / size if size else 0.0


def check_fit(dataset: Dataset, manifest: Manifest) -> None:
    """Refuse a data set that the model cannot be evaluated on."""
    shape = dataset.test.x.shape[1:]
    if shape != manifest.input_shape or dataset.classes != manifest.classes:
        raise DataError(
            f"data set {dataset.name} has samples of shape {shape} in {dataset.classes} classes, the artifacts were "
            f"exported for {manifest.input_shape} in {manifest.classes}; name the data set of the export"
        )
