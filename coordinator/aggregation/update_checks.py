"""Checks whether we may average an update."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from sparsyedge.coordinator.aggregation.measures import Measures, measure
from sparsyedge.coordinator.aggregation.round_base import Products, RoundBase
from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.model.prune import removed_count
from sparsyedge.edge.protocol.chunks import check_hash
from sparsyedge.edge.tensors import FloatArray, first_nonfinite
from sparsyedge.edge.wire.envelope import digests
from sparsyedge.edge.wire.flat_frame import FlatUpdate, decode_flat
from sparsyedge.edge.wire.frame import FrameHeader
from sparsyedge.edge.wire.sparse_tensor import bits_of

__all__ = ["Verified", "entry_budget", "max_update_bytes", "nonzero_budget", "verify_update"]

FRAME_SLACK_BYTES = 128 << 10
"""Room for the header, the digest, and zstd's overhead on incompressible data."""


def nonzero_budget(manifest: Manifest) -> int:
    """Return how many prunable weights may differ from zero, or from the base if devices prune changes."""
    method = manifest.method
    size = sum(math.prod(parameter.shape) for parameter in manifest.parameters if parameter.prunable)
    # The densest group sends the most.
    return size if method.uplink == "whole" else size - removed_count(size, min(method.sparsity, *method.sparsities, 1))


def entry_budget(manifest: Manifest, round_number: int) -> int:
    """Return how many non-zeros an update may have in this round: the budget, and votes where the mask may move."""
    budget = nonzero_budget(manifest)
    return budget + int(manifest.method.regrown_share(round_number) * budget)


def max_update_bytes(manifest: Manifest) -> int:
    """Bound the frame of an honest update: every value it may keep and a bit per entry for masks, uncompressed."""
    entries = sum(math.prod(parameter.shape) for parameter in manifest.parameters)
    prunable = sum(math.prod(parameter.shape) for parameter in manifest.parameters if parameter.prunable)
    # If devices prune changes rather than weights, they send all weights.
    kept = nonzero_budget(manifest) if manifest.method.uplink == "weights" else prunable
    kept += int(manifest.method.most_regrowth * kept)
    return 4 * (entries - prunable + kept) + entries // 8 + entries // 64 + FRAME_SLACK_BYTES


class Verified(NamedTuple):
    """An update that may be averaged, and what was measured of it."""

    update: FlatUpdate
    measures: Measures


def verify_update(
    frame: bytes, base: RoundBase, *, run: str, round_number: int, base_id: str, sha256: str | None = None
) -> Verified:
    """Decode and measure an update; raises FrameError if it is not for this round or would harm the average.

    `sha256` is the promised hash of the frame; None if the caller has checked it.
    """
    digest = None
    if sha256 is not None:
        digest, found = digests(frame)
        check_hash(sha256, found)
    header, update = decode_flat(frame, base.layout, base.flat, digest=digest)
    _check_header(header, run=run, round_number=round_number, base=base_id)
    update = base.whole(update)
    near = base.near(update)
    products, finite = base.products(update, near)
    if not finite:
        name = first_nonfinite(update.tensors(base.layout))
        raise FrameError(f"{name} holds NaN or infinity; the learning rate may be too high for this device's data")
    _check_others(update, base)
    allowed = entry_budget(base.manifest, round_number)
    _check_budget(products, update, near, base, allowed)
    return Verified(_within_budget(update, base, allowed), measure(update, base, products, near))


def _within_budget(update: FlatUpdate, base: RoundBase, allowed: int) -> FlatUpdate:
    """The update without zeros if it lists too many: a short frame could list the whole model, to fill our disk."""
    if not base.zeros_are_pruned or update.values.size <= allowed:
        return update
    kept = np.flatnonzero(update.values)
    positions = kept.astype(np.uint32) if update.positions is None else update.positions[kept]
    return FlatUpdate(positions, update.values[kept], update.others, update.entries)


def _check_others(update: FlatUpdate, base: RoundBase) -> None:
    layout, manifest = base.layout, base.manifest
    for norm in manifest.batch_norms:
        if (update.others[layout.places[norm.variance]] < 0).any():
            raise FrameError(f"{norm.variance} holds a negative variance")
    for name in manifest.frozen:
        place = layout.places[name]
        if not np.array_equal(bits_of(update.others[place]), bits_of(base.flat.others[place])):
            raise FrameError(f"{name} is another than in the round's model, though it is frozen: no step changes it")


def _check_budget(products: Products, update: FlatUpdate, near: FloatArray, base: RoundBase, allowed: int) -> None:
    method = base.manifest.method
    if method.uplink == "delta":
        what, found = "changed", int(np.count_nonzero(update.values != near))
    else:
        what, found = "non-zero", int(products.nonzeros[: len(base.layout.weights)].sum())
    if found > allowed:
        raise FrameError(f"update has {found} {what} weights, sparsity {method.sparsity} allows {allowed}")


def _check_header(header: FrameHeader, *, run: str, round_number: int, base: str) -> None:
    found = (header.run, header.round, header.base_id)
    if found != (run, round_number, base):
        raise FrameError(
            f"frame is for run {header.run[:64]!r}, round {header.round}, base {header.base_id[:12]!r}; "
            f"wanted is run {run!r}, round {round_number}, base {base[:12]!r}"
        )
