"""The accuracy of a delivered model on labelled samples."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sparsyedge.edge.data import load
from sparsyedge.edge.errors import DataError
from sparsyedge.edge.inference.inputs import Batch, read_dataset
from sparsyedge.edge.inference.predictor import Predictor

__all__ = ["Score", "evaluate"]


@dataclass(frozen=True)
class Score:
    """The share of samples that the model gets right, overall and per class."""

    samples: int
    accuracy: float
    by_class: dict[str, float]
    """NaN for a class without samples."""


def evaluate(model: Path | str, dataset: str, data_dir: Path | str | None = None) -> Score:
    """Score a `model.onnx` on the test part of a data set, named as in run.toml.

    Raises ArtifactError or DataError if the model or the data is unusable.
    """
    predictor = Predictor(Path(model))
    data = load(dataset, None if data_dir is None else Path(data_dir))
    if not len(data.test):
        raise DataError(f"data set {data.name} has no test part; add x_test and y_test, or a folder `test`")
    return _score(predictor, read_dataset(data, predictor.description, predictor.sample))


def _score(predictor: Predictor, batches: Iterable[Batch]) -> Score:
    names = predictor.description.class_names
    right, seen = np.zeros(len(names), dtype=np.int64), np.zeros(len(names), dtype=np.int64)
    for batch in batches:
        assert batch.labels is not None
        found = predictor.probabilities(batch.x).argmax(axis=1)
        right += np.bincount(batch.labels[found == batch.labels], minlength=len(names))
        seen += np.bincount(batch.labels, minlength=len(names))
    shares = {name: float(r / s) if s else math.nan for name, r, s in zip(names, right, seen, strict=True)}
    return Score(int(seen.sum()), float(right.sum() / seen.sum()), shares)
