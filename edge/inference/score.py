"""How well a delivered model does on labelled samples."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sparsyedge.edge.data import load
from sparsyedge.edge.errors import DataError
from sparsyedge.edge.inference.inputs import Batch, read_dataset
from sparsyedge.edge.inference.losses import RegressionErrors
from sparsyedge.edge.inference.predictor import Predictor

__all__ = ["Score", "evaluate"]


@dataclass(frozen=True)
class Score:
    """The share of samples that the model gets right, overall and per class; or the errors of a regression."""

    samples: int
    accuracy: float | None = None
    """None for a regression."""
    by_class: dict[str, float] = field(default_factory=dict)
    """NaN for a class without samples; empty for a regression."""
    rmse: float | None = None
    """A regression's root mean squared error, in the unit of the targets; None for classes."""
    r_squared: float | None = None
    """The share of the targets' variance that a regression explains; None also if they do not vary."""


def evaluate(model: Path | str, dataset: str, data_dir: Path | str | None = None) -> Score:
    """Score a `model.onnx` on the test part of a data set, named as in run.toml.

    Raises ArtifactError or DataError if the model or the data is unusable.
    """
    predictor = Predictor(Path(model))
    data = load(dataset, None if data_dir is None else Path(data_dir))
    if not len(data.test):
        raise DataError(f"data set {data.name} has no test part; add x_test and y_test, or a folder `test`")
    batches = read_dataset(data, predictor.description, predictor.sample)
    return _score(predictor, batches) if predictor.description.task == "classes" else _errors(predictor, batches)


def _score(predictor: Predictor, batches: Iterable[Batch]) -> Score:
    names = predictor.description.names
    right, seen = np.zeros(len(names), dtype=np.int64), np.zeros(len(names), dtype=np.int64)
    for batch in batches:
        assert batch.labels is not None
        found = predictor.probabilities(batch.x).argmax(axis=1)
        right += np.bincount(batch.labels[found == batch.labels], minlength=len(names))
        seen += np.bincount(batch.labels, minlength=len(names))
    shares = {name: float(r / s) if s else math.nan for name, r, s in zip(names, right, seen, strict=True)}
    return Score(int(seen.sum()), float(right.sum() / seen.sum()), shares)


def _errors(predictor: Predictor, batches: Iterable[Batch]) -> Score:
    errors = RegressionErrors()
    for batch in batches:
        assert batch.labels is not None
        errors.add(predictor.values(batch.x), batch.labels)
    return Score(errors.samples, rmse=errors.rmse, r_squared=errors.r_squared)
