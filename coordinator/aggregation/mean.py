"""Federated averaging: numpy only, no I/O."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.tensors import State, Tensors

__all__ = ["average"]

PIECE = 1 << 16
"""Entries that are weighted at a time: a tensor's worth of float64 would be memory for nothing."""


def average(updates: Iterable[tuple[float, Tensors]]) -> State:
    """The mean of the states weighted by their samples, BatchNorm's statistics included; needs at least one update.

    Takes the updates one at a time, and of each one tensor at a time, and lets go of it: memory is one float64 sum,
    which is two dense models, however many devices took part. The bits of the result depend on the order of the
    updates: pass them in device order.
    """
    sums: dict[str, NDArray[np.float64]] = {}
    total: float = 0
    for samples, state in updates:
        total += samples
        _add(sums, samples, state)
        # Let go before the next one is decoded.
        del state
    if total == 0:
        raise ValueError("average of no updates")
    # Tensor by tensor, so that sums and means are never there together.
    return {name: _to_float32(sums.pop(name), total) for name in list(sums)}


def _add(sums: dict[str, NDArray[np.float64]], samples: float, state: Tensors) -> None:
    for name, tensor in state.items():
        if name not in sums:
            sums[name] = np.zeros(tensor.shape, dtype=np.float64)
        summed, values = sums[name].reshape(-1), tensor.reshape(-1)
        for start in range(0, values.size, PIECE):
            piece = slice(start, start + PIECE)
            # The weight is applied in float64, where an entry that is zero on every device stays exactly zero and the
            # only rounding that matters is the last one.
            summed[piece] += np.multiply(values[piece], np.float64(samples), dtype=np.float64)


def _to_float32(summed: NDArray[np.float64], total: float) -> NDArray[np.float32]:
    np.divide(summed, np.float64(total), out=summed)
    mean = summed.astype(np.float32)
    # A small negative mean may round to -0.0: an entry more on the wire, and another hash for the same model.
    mean += np.float32(0.0)
    return mean
