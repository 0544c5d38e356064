"""The order in which a device sees its samples: a pure function, so that a job started again gives the same update."""

from __future__ import annotations

import hashlib
import json

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.errors import DataError

__all__ = ["epoch_order", "split_batches"]


def epoch_order(count: int, *, seed: int, round_number: int, device_id: str, epoch: int) -> NDArray[np.int64]:
    """A permutation of 0..count-1 that depends on the arguments alone, not on machine, process or earlier calls."""
    # JSON keeps neighbours apart: (1, 23) and (12, 3) are different texts, whatever the device is called.
    key = json.dumps(["epoch_order", seed, round_number, device_id, epoch]).encode("ascii")
    stream = np.random.PCG64(int.from_bytes(hashlib.sha256(key).digest(), "big"))
    # numpy promises the raw stream of a bit generator for ever, but not what Generator.permutation makes of it.
    return np.argsort(stream.random_raw(count), kind="stable").astype(np.int64, copy=False)


def split_batches(order: NDArray[np.int64], batch_size: int) -> list[NDArray[np.int64]]:
    """The order cut into batches; the last one is smaller where `batch_size` does not divide it, and is kept."""
    if batch_size < 1:
        raise DataError(f"batch_size = {batch_size} is out of range; allowed is 1 or more")
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
