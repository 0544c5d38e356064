"""Random crops, flips and mixtures of a batch. A pure function of its arguments: a restarted job gives the same update.

Random numbers come from the raw stream of a bit generator, which numpy guarantees for ever, as in edge/data/batches.py.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from sparsyedge.edge.model.training import Training
from sparsyedge.edge.tensors import FloatArray

__all__ = ["Mixed", "StepKey", "augment", "background"]

MANTISSA_BITS = 53


@dataclass(frozen=True)
class StepKey:
    """Everything that the random numbers of one step depend on."""

    seed: int
    round_number: int
    device_id: str
    epoch: int
    step: int

    def stream(self) -> np.random.PCG64:
        """The random numbers of the step's augmentation."""
        return np.random.PCG64(int.from_bytes(self._digest("augment"), "big"))

    def number(self) -> int:
        """The seed of the step's dropout: 63 bits, which every integer type of a graph can hold."""
        return int.from_bytes(self._digest("dropout")[:8], "big") >> 1

    def _digest(self, purpose: str) -> bytes:
        facts = [purpose, self.seed, self.round_number, self.device_id, self.epoch, self.step]
        return hashlib.sha256(json.dumps(facts).encode("ascii")).digest()


@dataclass(frozen=True, eq=False)
class Mixed:
    """The other half of mixed samples: a sample is `share` of its own label, and the rest of this one."""

    labels: NDArray[np.int64]
    share: float


def background(stored: np.dtype[np.generic]) -> float:
    """What surrounds a cropped image, after scaling: black for pixels, zero for anything else."""
    return -1.0 if stored == np.uint8 else 0.0


def augment(
    training: Training, x: FloatArray, y: NDArray[Any], key: StepKey, *, fill: float
) -> tuple[FloatArray, NDArray[Any], Mixed | None]:
    """A batch as one step sees it, with its labels, and what it is mixed with, if at all.

    `fill` surrounds a cropped image. Labels that are numbers to predict, not classes, are mixed like the samples.
    """
    stream = key.stream()
    if training.crop:
        x = _crop(x, training.crop, stream, fill)
    if training.flip:
        flipped = (_raw(stream, len(x)) >> np.uint64(63)).astype(bool)
        x = np.where(flipped[:, None, None, None], x[..., ::-1], x)
    if not training.mixup:
        return x, y, None
    share = _beta(training.mixup, stream)
    partner = np.argsort(_raw(stream, len(x)), kind="stable")
    own = np.float32(share)
    other = np.float32(1) - own
    mixed = own * x + other * x[partner]
    if y.dtype == np.float32:
        return mixed, own * y + other * y[partner], None
    return mixed, y, Mixed(y[partner], float(own))


def _crop(x: FloatArray, padding: int, stream: np.random.PCG64, fill: float) -> FloatArray:
    """Every image from its own random place in itself with a border."""
    around = ((0, 0), (0, 0), (padding, padding), (padding, padding))
    padded = np.pad(x, around, constant_values=np.float32(fill))
    windows = sliding_window_view(padded, x.shape[2:], axis=(2, 3))
    places = np.uint64(2 * padding + 1)
    top, left = (_raw(stream, len(x)) % places).astype(np.intp), (_raw(stream, len(x)) % places).astype(np.intp)
    return np.ascontiguousarray(windows[np.arange(len(x)), :, top, left])


def _beta(alpha: float, stream: np.random.PCG64) -> float:
    """A draw from Beta(alpha, alpha), by Johnk's method; in logarithms, because powers of 1 / alpha underflow."""
    while True:
        first, second = (math.log((int(raw) >> 11) + 0.5) - MANTISSA_BITS * math.log(2) for raw in _raw(stream, 2))
        first, second = first / alpha, second / alpha
        largest = max(first, second)
        total = largest + math.log(math.exp(first - largest) + math.exp(second - largest))
        if total <= 0:
            return math.exp(first - total)


def _raw(stream: np.random.PCG64, count: int) -> NDArray[np.uint64]:
    return np.asarray(stream.random_raw(count), dtype=np.uint64)
