"""The devices' shares of a data set on disk; written once and memory-mapped by every worker to save memory."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sparsyedge.coordinator.record.records import Evaluation
from sparsyedge.edge.data import Samples, share_out
from sparsyedge.edge.device.class_shares import class_shares

__all__ = ["Shares", "accuracy_by_device", "device_names", "label_mixes", "told_classes", "write_shares"]


def device_names(devices: int) -> tuple[str, ...]:
    """The ids of simulated devices; leading zeros make the order by name the order by number."""
    digits = max(3, len(str(devices - 1)))
    return tuple(f"device-{index:0{digits}d}" for index in range(devices))


def label_mixes(directory: Path) -> NDArray[np.float64]:
    """The share of each class among each device's samples, with shape (devices, classes); not for a regression."""
    labels, ends = np.load(directory / "y.npy"), np.load(directory / "ends.npy")
    classes = int(labels.max()) + 1
    parts = np.split(labels, ends[:-1])
    return np.stack([np.bincount(part, minlength=classes) / len(part) for part in parts])


def told_classes(directory: Path, classes: int) -> dict[str, tuple[int, ...]]:
    """What each device says of the model's classes."""
    labels, ends = np.load(directory / "y.npy"), np.load(directory / "ends.npy")
    parts = np.split(labels, ends[:-1])
    return {name: class_shares(part, classes) for name, part in zip(device_names(len(ends)), parts, strict=True)}


def accuracy_by_device(evaluation: Evaluation, mixes: NDArray[np.float64]) -> Evaluation:
    """The evaluation, plus the accuracy on data mixed like each device's own; `mixes` comes from `label_mixes`."""
    return replace(evaluation, by_device=_by_device(mixes, evaluation.by_class))


def _by_device(label_mixes: NDArray[np.float64], by_class: tuple[float, ...]) -> tuple[float, ...]:
    """The accuracy on each device's mix; classes that the test part lacks do not count."""
    known = np.array([label for label, accuracy in enumerate(by_class) if not math.isnan(accuracy)])
    known = known[known < label_mixes.shape[1]]
    weights = label_mixes[:, known]
    totals = weights.sum(axis=1)
    hits = weights @ np.array(by_class)[known]
    return tuple(float(hit / total) for hit, total in zip(hits, totals, strict=True) if total > 0)


def write_shares(samples: Samples, directory: Path, *, devices: int, alpha: float, seed: int) -> dict[str, int]:
    """Deal out the samples and write each device's together; returns how many each has."""
    parts = share_out(samples, devices, alpha, seed)
    order = np.concatenate(parts)
    ends = np.cumsum([len(part) for part in parts])
    np.save(directory / "x.npy", samples.x[order])
    np.save(directory / "y.npy", samples.y[order])
    np.save(directory / "ends.npy", ends)
    return {name: len(part) for name, part in zip(device_names(devices), parts, strict=True)}


class Shares:
    """Reads what `write_shares` wrote."""

    def __init__(self, directory: Path) -> None:
        self._x = np.load(directory / "x.npy", mmap_mode="r")
        self._y = np.load(directory / "y.npy", mmap_mode="r")
        ends = np.load(directory / "ends.npy")
        starts = np.concatenate([[0], ends[:-1]])
        self._bounds = dict(zip(device_names(len(ends)), zip(starts, ends, strict=True), strict=True))

    def of(self, device: str) -> Samples:
        """One device's samples, in memory."""
        start, end = self._bounds[device]
        return Samples(np.array(self._x[start:end]), np.array(self._y[start:end]))
