"""Evaluates global models."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from sparsyedge.coordinator.allocator import give_back_free_memory
from sparsyedge.coordinator.model.group_models import group_states
from sparsyedge.coordinator.record.metrics import ERROR_LEVEL_PREFIX, LEVEL_PREFIX
from sparsyedge.coordinator.record.records import Evaluation
from sparsyedge.edge.data import Dataset, Labels, Samples
from sparsyedge.edge.data.classes import fit_to_model
from sparsyedge.edge.errors import DataError
from sparsyedge.edge.inference.eval_session import EvalSession
from sparsyedge.edge.inference.losses import RegressionErrors
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.tensors import FloatArray, State

__all__ = ["Evaluate", "Evaluator", "Extend", "evaluate_levels", "evaluation_samples"]

EVALUATION_BATCH = 10
"""Activations must take far less memory than the model does, and larger batches are no faster on a processor."""

Evaluate = Callable[[State], Evaluation]
Extend = Callable[[Evaluation], Evaluation]


class Evaluator:
    """Evaluates states on one set of samples."""

    def __init__(
        self, session: EvalSession, samples: Samples, extend: Extend | None = None, *, at_once: int = 1
    ) -> None:
        """`extend` adds the caller's own measurements to each evaluation.

        Up to `at_once` batches are evaluated at the same time, each by a thread of its own; that changes no figure.
        """
        self._session = session
        self._samples = samples
        self._extend = extend
        self._at_once = at_once

    def __call__(self, state: State) -> Evaluation:
        """Measure accuracy, or the errors of a regression, and loss over all samples, with running statistics."""
        give_back_free_memory()
        self._session.load(state)
        try:
            evaluation = self._classes() if self._samples.task == "classes" else self._regression()
        finally:
            self._session.unload()
            give_back_free_memory()
        return evaluation if self._extend is None else self._extend(evaluation)

    def _classes(self) -> Evaluation:
        loss_sum = 0.0
        # One count per class; the first batch tells how many classes there are.
        right, seen = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        for y, loss, logits in self._batches():
            classes = logits.shape[1]
            right = _add(right, np.bincount(y[logits.argmax(axis=1) == y], minlength=classes))
            seen = _add(seen, np.bincount(y, minlength=classes))
            loss_sum += loss * len(y)
        by_class = tuple(float(hits / count) if count else math.nan for hits, count in zip(right, seen, strict=True))
        return Evaluation(int(right.sum()) / len(self._samples), loss_sum / len(self._samples), by_class=by_class)

    def _regression(self) -> Evaluation:
        errors = RegressionErrors()
        for y, _, values in self._batches():
            errors.add(values, y)
        return Evaluation(None, errors.mse, rmse=errors.rmse, r_squared=errors.r_squared)

    def _batches(self) -> Iterator[tuple[Labels, float, FloatArray]]:
        """The labels, the loss and the model's output of every batch, in order."""
        starts = range(0, len(self._samples), EVALUATION_BATCH)
        if self._at_once == 1:
            yield from map(self._batch, starts)
            return
        with ThreadPoolExecutor(self._at_once, thread_name_prefix="evaluation") as threads:
            yield from threads.map(self._batch, starts)

    def _batch(self, start: int) -> tuple[Labels, float, FloatArray]:
        x, y = self._samples.batch(np.arange(start, min(start + EVALUATION_BATCH, len(self._samples))))
        return y, *self._session.evaluate(x, y)


def _add(total: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return counts if not len(total) else total + counts


def evaluate_levels(evaluate: Evaluate, state: State, manifest: Manifest, group_masks: bytes = b"") -> dict[str, float]:
    """Measure the accuracy at each group's own sparsity: groups with a target start from the model pruned to it.

    A regression's error takes the place of its accuracy. `group_masks` are the groups' own, if those are fixed.
    """
    figures = {}
    for sparsity, pruned in group_states(manifest, state, group_masks):
        found = evaluate(pruned)
        if found.accuracy is not None:
            figures[f"{LEVEL_PREFIX}{sparsity:g}"] = found.accuracy
        elif found.rmse is not None:
            figures[f"{ERROR_LEVEL_PREFIX}{sparsity:g}"] = found.rmse
    return figures


def evaluation_samples(dataset: Dataset, manifest: Manifest) -> Samples:
    """Return the test samples with the model's labels; raises DataError if they do not fit.

    With class names, classes may be missing. Without names, the number of classes must match.
    """
    by_name = dataset.names and manifest.class_names
    are_classes = dataset.task == manifest.task == "classes"
    if are_classes and not by_name and dataset.classes != manifest.classes:
        raise DataError(
            f"data set {dataset.name} has {dataset.classes} classes, the artifacts were exported for "
            f"{manifest.classes}; name the data set of the export"
        )
    return fit_to_model(dataset.test, dataset.names, manifest.form, owner=f"data set {dataset.name}")
