"""A model's state: named float32 tensors, their canonical id, and counts over them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "FloatArray",
    "MadeOnDemand",
    "State",
    "Tensors",
    "count_nonzero",
    "count_regrown",
    "dense_bytes",
    "first_nonfinite",
    "global_sparsity",
    "model_id",
]

FloatArray = NDArray[np.float32]
State = dict[str, FloatArray]
"""Weights before the power, biases, BatchNorm affine and running statistics, by parameter name."""
Tensors = Mapping[str, FloatArray]
"""A read-only state; it may create each tensor on demand."""


class MadeOnDemand(Mapping[str, FloatArray]):
    """Tensors created anew on every access: a state that takes no memory."""

    def __init__(self, names: Collection[str], make: Callable[[str], FloatArray]) -> None:
        self._names = dict.fromkeys(names)
        self._make = make

    def __getitem__(self, name: str) -> FloatArray:
        if name not in self._names:
            raise KeyError(name)
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def model_id(state: Mapping[str, FloatArray]) -> str:
    """The SHA-256 of names, shapes and float32 bytes, in name order. Equal ids mean equal models."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = np.ascontiguousarray(state[name], dtype="<f4")
        digest.update(f"{name}{tensor.shape}\n".encode())
        digest.update(tensor.data)
    return digest.hexdigest()


def dense_bytes(state: Mapping[str, FloatArray]) -> int:
    """The size of the state as plain float32: the baseline for every byte count."""
    return sum(4 * tensor.size for tensor in state.values())


def count_nonzero(state: Mapping[str, FloatArray], names: Iterable[str]) -> int:
    """The number of non-zero entries in the named tensors."""
    return sum(int(np.count_nonzero(state[name])) for name in names)


def global_sparsity(state: Mapping[str, FloatArray], prunable: Iterable[str]) -> float:
    """The share of prunable weights that are exactly zero."""
    names = tuple(prunable)
    size = sum(state[name].size for name in names)
    return 1.0 - count_nonzero(state, names) / size if size else 0.0


def count_regrown(before: Mapping[str, FloatArray], after: Mapping[str, FloatArray], names: Iterable[str]) -> int:
    """The number of entries in the named tensors that were exactly zero before and are not after."""
    return sum(int(np.count_nonzero((before[name] == 0) & (after[name] != 0))) for name in names)


def first_nonfinite(state: Mapping[str, FloatArray]) -> str | None:
    """The name of a tensor with NaN or infinity; None if all are finite."""
    return next((name for name, tensor in state.items() if not np.isfinite(tensor).all()), None)
