"""Error feedback: the next frame makes up for what a lossy frame lost. Pure functions, no I/O.

    coded = encode_with_feedback(state, residual, base=..., codec="int8", ...)
    coded.frame, coded.decoded      # the bytes to send, and the receiver's result
    residual = unpack_residual(coded.residual, ...)     # for the next one

Devices use it for their updates, the coordinator for its models. The residual belongs to its frame: keep both or
neither (edge/device/outbox.py, coordinator/model/model_files.py). It covers kept entries only. It stays packed, because
devices and coordinators are short of memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from sparsyedge.edge.tensors import FloatArray, MadeOnDemand, Tensors
from sparsyedge.edge.wire.codecs import CODECS, Codec, codec_for
from sparsyedge.edge.wire.frame import encode_frame
from sparsyedge.edge.wire.local_tensors import open_tensors, pack_tensors

__all__ = ["Coded", "compensate", "encode_with_feedback", "left_over", "pack_residual", "unpack_residual"]


@dataclass(frozen=True)
class Coded:
    """A frame, the receiver's result, and the difference to the original."""

    frame: bytes
    decoded: Tensors
    residual: bytes
    """Packed; empty if nothing was lost."""


def encode_with_feedback(
    state: Tensors,
    residual: Tensors,
    *,
    run: str,
    round_number: int,
    base_id: str,
    base: Tensors | None,
    codec: Codec,
    prunable: Collection[str],
) -> Coded:
    """Encode the state plus the last frame's residual; without loss, the residual is empty."""
    used = codec_for(codec, base, prunable)
    lossy = CODECS[used].lossy
    sent = compensate(state, residual, prunable) if lossy else state
    encoded = encode_frame(
        sent, run=run, round_number=round_number, base_id=base_id, base=base, codec=used, prunable=prunable
    )
    lost = pack_residual(left_over(sent, encoded.decoded, prunable)) if lossy else b""
    return Coded(encoded.frame, encoded.decoded, lost)


def compensate(state: Tensors, residual: Tensors, prunable: Collection[str]) -> Tensors:
    """The state to send: adds the residual to entries that are still kept; never creates or removes an entry."""
    changed = set(prunable) & set(residual)
    return MadeOnDemand(
        state.keys(), lambda name: _compensated(state[name], residual[name]) if name in changed else state[name]
    )


def _compensated(tensor: FloatArray, residual: FloatArray) -> FloatArray:
    kept = np.flatnonzero(tensor)
    entries = tensor.reshape(-1)[kept]
    compensated = entries + residual.reshape(-1)[kept]
    sent = tensor.copy()
    # A sum of exactly zero would look like a pruned entry.
    sent.reshape(-1)[kept] = np.where(compensated == 0, entries, compensated)
    return sent


def left_over(sent: Tensors, decoded: Tensors, prunable: Collection[str]) -> Tensors:
    """What the receiver lacks of the sent state; zero for every entry that is not kept."""
    return MadeOnDemand(set(prunable) & set(sent), lambda name: _lacking(sent[name], decoded[name]))


def _lacking(sent: FloatArray, decoded: FloatArray) -> FloatArray:
    kept = np.flatnonzero(sent)
    residual = np.zeros(sent.shape, dtype=np.float32)
    residual.reshape(-1)[kept] = sent.reshape(-1)[kept] - decoded.reshape(-1)[kept]
    return residual


def pack_residual(residual: Tensors) -> bytes:
    """Pack a residual for a file; no bytes where there is none."""
    return pack_tensors(residual) if residual else b""


def unpack_residual(content: bytes, shapes: Mapping[str, tuple[int, ...]]) -> Tensors:
    """Return the residual of the weights with these shapes; raises DamagedFileError where the bytes are not one."""
    return open_tensors(content).tensors(shapes) if content else {}
