"""Samples as stored, and samples as a training step needs them.

Images stay uint8 until a batch needs them: 500 CIFAR images cost 1.5 MB instead of 6, and a Pi has better uses for the
rest.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["AXES", "MAX_CLASS_NAME", "Dataset", "Labels", "Samples", "Task", "axes_of"]

MAX_CLASS_NAME = 200
"""The longest class name, in characters."""

DIGEST_SAMPLES = 1024

Task = Literal["classes", "regression"]
"""What a model learns: to tell classes apart, or to give numbers."""
Labels = NDArray[np.int64] | NDArray[np.float32]
"""Class numbers (samples,), or the targets of a regression (samples, outputs)."""
AXES = {1: "features", 2: "channels, length", 3: "channels, height, width", 4: "channels, depth, height, width"}
"""The axes of one sample, by how many it has; no sample has more."""

# ToTensor, then Normalize(0.5, 0.5), in float32 like torchvision. There are 256 values, so a table gives the same bits.
_NORMALISED = (np.arange(256, dtype=np.float32) / np.float32(255) - np.float32(0.5)) / np.float32(0.5)


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples and their labels, in one order.

    `x` is (samples, ...) with the axes of AXES: uint8 images in 0..255, int16 sound, or float32 that is already
    normalised. `y` is int64 (samples,), or float32 (samples, outputs) for a regression; (samples,) becomes one column.
    """

    x: NDArray[np.uint8] | NDArray[np.int16] | NDArray[np.float32]
    y: Labels

    def __post_init__(self) -> None:
        if self.task == "regression" and self.y.ndim == 1:
            object.__setattr__(self, "y", self.y[:, np.newaxis])

    def __len__(self) -> int:
        return len(self.x)

    @property
    def task(self) -> Task:
        """A regression if the labels are floating-point numbers."""
        return "regression" if self.y.dtype.kind == "f" else "classes"

    def digest(self) -> str:
        """A hash of all samples in order; reads them once, in pieces."""
        digest = hashlib.sha256(f"{self.x.dtype.str} {self.x.shape} {self.y.dtype.str}".encode())
        for array in (self.x, self.y):
            for start in range(0, len(array), DIGEST_SAMPLES):
                digest.update(array[start : start + DIGEST_SAMPLES].tobytes())
        return digest.hexdigest()

    def none(self) -> Samples:
        """No samples, of the same shape."""
        return Samples(self.x[:0].copy(), self.y[:0].copy())

    def take(self, indices: NDArray[np.int64]) -> Samples:
        """Only these samples, in the order of `indices`; copies them so that the rest can be freed."""
        return Samples(self.x[indices], self.y[indices])

    def batch(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.float32], Labels]:
        """One step's input, pixels and sound scaled to -1..1, and its labels (batch,) or targets (batch, outputs)."""
        stored = self.x[indices]
        if stored.dtype == np.uint8:
            return _NORMALISED[stored], self.y[indices]
        x = stored.astype(np.float32, copy=False)
        return x / np.float32(32768) if stored.dtype == np.int16 else x, self.y[indices]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set with its official split; `name` is the user's name for it, for messages and records."""

    name: str
    train: Samples
    test: Samples
    """Empty if the data has no test part: a device trains without one."""
    classes: int
    """The number of classes; in a regression, of outputs."""
    names: tuple[str, ...] = ()
    """The names of the classes in the order of their numbers, or of the outputs; empty if the data has none."""

    @property
    def task(self) -> Task:
        """What the labels of the train part are for."""
        return self.train.task

    @property
    def outputs(self) -> int:
        """How many numbers a model gives per sample: one for each class, or for each target."""
        return self.classes


def axes_of(shape: tuple[int, ...]) -> str:
    """The names of a sample's axes, in brackets."""
    return f"({AXES.get(len(shape), f'{len(shape)} axes')})"
