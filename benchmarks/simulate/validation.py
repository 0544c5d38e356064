"""A validation part: training samples that no device gets, to choose settings on while the test part stays unseen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.data import Dataset, Labels, Samples
from sparsyedge.edge.errors import ConfigError

__all__ = ["split_validation"]


def split_validation(dataset: Dataset, count: int, *, seed: int, devices: int) -> tuple[Dataset, Samples]:
    """The data set without `count` of its training samples, and these samples; classes keep their shares in both.

    Raises ConfigError if fewer samples than devices are left to train on.
    """
    most = len(dataset.train) - devices
    if not 1 <= count <= most:
        raise ConfigError(
            f"key `simulation.validation` has value {count}: data set {dataset.name} has {len(dataset.train)} training "
            f"samples, and {devices} devices need at least one each; allowed are 0 to {max(0, most)}"
        )
    order = np.random.default_rng(seed).permutation(len(dataset.train))
    if dataset.task == "classes":
        order = order[np.argsort(_places_in_class(dataset.train.y[order]), kind="stable")]
    chosen, others = np.sort(order[:count]), np.sort(order[count:])
    return replace(dataset, train=dataset.train.take(others)), dataset.train.take(chosen)


def _places_in_class(labels: Labels) -> NDArray[np.float64]:
    """How far along its own class each sample stands, from 0 to 1."""
    places = np.empty(len(labels))
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        places[members] = (np.arange(len(members)) + 0.5) / len(members)
    return places
