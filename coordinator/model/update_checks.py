"""Checks whether we may average an update."""

from __future__ import annotations

import math

import numpy as np

from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.model.prune import removed_count
from sparsyedge.edge.tensors import State
from sparsyedge.edge.wire.frame import FrameHeader, LazyFrame, decode_lazily
from sparsyedge.edge.wire.sparse_tensor import bits_of

__all__ = ["max_update_bytes", "nonzero_budget", "verify_update"]

FRAME_SLACK_BYTES = 128 << 10
"""Room for the header, the digest, and zstd's overhead on incompressible data."""


def nonzero_budget(manifest: Manifest) -> int:
    """Return how many prunable weights may differ from zero, or from the base if devices prune changes."""
    method = manifest.method
    size = sum(math.prod(parameter.shape) for parameter in manifest.parameters if parameter.prunable)
    # The densest group sends the most.
    return size if method.uplink == "whole" else size - removed_count(size, min(method.sparsity, *method.sparsities, 1))


def max_update_bytes(manifest: Manifest) -> int:
    """Bound the frame of an honest update: every value it may keep and a bit per entry for masks, uncompressed."""
    entries = sum(math.prod(parameter.shape) for parameter in manifest.parameters)
    prunable = sum(math.prod(parameter.shape) for parameter in manifest.parameters if parameter.prunable)
    # If devices prune changes rather than weights, they send all weights.
    kept = nonzero_budget(manifest) if manifest.method.uplink == "weights" else prunable
    return 4 * (entries - prunable + kept) + entries // 8 + entries // 64 + FRAME_SLACK_BYTES


def verify_update(
    frame: bytes, manifest: Manifest, *, run: str, round_number: int, base: str, base_state: State | None = None
) -> LazyFrame:
    """Decode an update lazily; raises FrameError if it is not for this round or would harm the average.

    An update that is a difference to model `base` needs `base_state`.
    """
    update = decode_lazily(frame, manifest.shapes, base_state)
    _check_header(update.header, run=run, round_number=round_number, base=base)
    for name in update:
        if not np.isfinite(update[name]).all():
            raise FrameError(f"{name} holds NaN or infinity; the learning rate may be too high for this device's data")
    for norm in manifest.batch_norms:
        if (update[norm.variance] < 0).any():
            raise FrameError(f"{norm.variance} holds a negative variance")
    _check_frozen(update, manifest, base_state)
    _check_budget(update, manifest, base_state)
    return update


def _check_frozen(update: LazyFrame, manifest: Manifest, base_state: State | None) -> None:
    if base_state is None:
        return
    for name in manifest.frozen:
        if not np.array_equal(bits_of(update[name]), bits_of(base_state[name])):
            raise FrameError(f"{name} is another than in the round's model, though it is frozen: no step changes it")


def _check_budget(update: LazyFrame, manifest: Manifest, base_state: State | None) -> None:
    if manifest.method.uplink == "delta" and base_state is not None:
        what, found = "changed", sum(int(np.count_nonzero(update[n] != base_state[n])) for n in manifest.prunable)
    else:
        what, found = "non-zero", sum(int(np.count_nonzero(update[name])) for name in manifest.prunable)
    allowed = nonzero_budget(manifest)
    if found > allowed:
        raise FrameError(f"update has {found} {what} weights, sparsity {manifest.method.sparsity} allows {allowed}")


def _check_header(header: FrameHeader, *, run: str, round_number: int, base: str) -> None:
    found = (header.run, header.round, header.base_id)
    if found != (run, round_number, base):
        raise FrameError(
            f"frame is for run {header.run[:64]!r}, round {header.round}, base {header.base_id[:12]!r}; "
            f"wanted is run {run!r}, round {round_number}, base {base[:12]!r}"
        )
