"""The models of groups of devices with targets of their own: the global model, pruned to each target.

Where the method's mask is fixed, so is each group's: made from the first averaged model, it travels from version to
version. Otherwise a group's model is the present one pruned anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from sparsyedge.coordinator.record.metrics import pack_mask
from sparsyedge.edge.model.allocation import prune_model
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.model.methods import Method
from sparsyedge.edge.protocol.messages import Blob
from sparsyedge.edge.tensors import State, Tensors

__all__ = ["GroupModel", "first_masks", "group_states"]

FIXED = ("fixed", "layer-density")
"""The rules that make a mask once."""


class GroupModel(NamedTuple):
    """What the devices with one target download."""

    sparsity: float
    id: str
    frame: bytes
    blob: Blob
    nonzeros: int
    """How many values travel."""


def first_masks(manifest: Manifest, state: Tensors) -> bytes:
    """The masks of all targets, packed, made from the first averaged model; empty unless masks are fixed."""
    method, prunable = manifest.method, manifest.prunable
    if method.download != "own" or method.mask not in FIXED:
        return b""
    masks = {str(target): pack_mask(_pruned(manifest, dict(state), target), prunable) for target in _targets(method)}
    return msgspec.msgpack.encode(masks)


def group_states(manifest: Manifest, state: State, packed: bytes = b"") -> Iterator[tuple[float, State]]:
    """Yield each target, the lowest first, and the model of the devices that have it; one model in memory at a time."""
    masks = msgspec.msgpack.decode(packed, type=dict[str, bytes]) if packed else {}
    for target in _targets(manifest.method):
        mask = masks.get(str(target))
        pruned = _pruned(manifest, state, target) if mask is None else _masked(state, manifest.prunable, mask)
        yield target, pruned


def _pruned(manifest: Manifest, state: State, target: float) -> State:
    return prune_model(manifest.method, state, manifest.prunable, target, positions=manifest.positions)


def _targets(method: Method) -> list[float]:
    return sorted(set(method.sparsities))


def _masked(state: State, prunable: Sequence[str], packed: bytes) -> State:
    kept = np.unpackbits(np.frombuffer(packed, dtype=np.uint8)).astype(np.bool_)
    found, start = dict(state), 0
    for name in prunable:
        tensor = state[name]
        found[name] = np.where(kept[start : start + tensor.size].reshape(tensor.shape), tensor, np.float32(0))
        start += tensor.size
    return found
