"""Federated averaging: numpy only, no I/O."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.tensors import State, Tensors

__all__ = ["average"]

PIECE = 1 << 16
"""Entries to weight at a time: a whole tensor in float64 would waste memory."""


def average(updates: Iterable[tuple[float, Tensors]]) -> State:
    """Average the states weighted by samples, BatchNorm's statistics included; needs at least one update.

    Reads one tensor of one update at a time and frees it. Memory is one float64 sum, the size of two dense models,
    however many devices took part. The bits of the result depend on the order of the updates: pass them in device
    order.
    """
    sums: dict[str, NDArray[np.float64]] = {}
    total: float = 0
    for samples, state in updates:
        total += samples
        _add(sums, samples, state)
        # Free it before the next one is decoded.
        del state
    if total == 0:
        raise ValueError("average of no updates")
    # Convert tensor by tensor: all sums and all means must not be in memory together.
    return {name: _to_float32(sums.pop(name), total) for name in list(sums)}


def _add(sums: dict[str, NDArray[np.float64]], samples: float, state: Tensors) -> None:
    for name, tensor in state.items():
        if name not in sums:
            sums[name] = np.zeros(tensor.shape, dtype=np.float64)
        summed, values = sums[name].reshape(-1), tensor.reshape(-1)
        for start in range(0, values.size, PIECE):
            piece = slice(start, start + PIECE)
            # Multiply in float64: an entry that is zero on every device stays exactly zero, and only the final rounding
            # matters.
            summed[piece] += np.multiply(values[piece], np.float64(samples), dtype=np.float64)


def _to_float32(summed: NDArray[np.float64], total: float) -> NDArray[np.float32]:
    np.divide(summed, np.float64(total), out=summed)
    mean = summed.astype(np.float32)
    # A tiny negative mean may round to -0.0, which costs an entry on the wire and changes the model's hash.
    mean += np.float32(0.0)
    return mean
