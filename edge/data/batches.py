"""The order in which a device sees its samples. A pure function: a restarted job gives the same update."""

from __future__ import annotations

import hashlib
import json

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.errors import DataError

__all__ = ["epoch_order", "split_batches"]


def epoch_order(count: int, *, seed: int, round_number: int, device_id: str, epoch: int) -> NDArray[np.int64]:
    """A permutation of 0..count-1 that depends only on the arguments, not on machine, process or earlier calls."""
    # JSON separates the values: (1, 23) and (12, 3) give different texts, whatever the device's name.
    key = json.dumps(["epoch_order", seed, round_number, device_id, epoch]).encode("ascii")
    stream = np.random.PCG64(int.from_bytes(hashlib.sha256(key).digest(), "big"))
    # numpy guarantees the raw stream of a bit generator for ever, but not the result of Generator.permutation.
    return np.argsort(stream.random_raw(count), kind="stable").astype(np.int64, copy=False)


def split_batches(order: NDArray[np.int64], batch_size: int) -> list[NDArray[np.int64]]:
    """Cut the order into batches; keeps a smaller last batch if `batch_size` does not divide it."""
    if batch_size < 1:
        raise DataError(f"batch_size = {batch_size} is out of range; allowed is 1 or more")
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
