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
from sparsyedge.edge.wire.frame import Encoded, encode_frame
from sparsyedge.edge.wire.local_tensors import Packer, open_tensors
from sparsyedge.edge.wire.native_codec import Positions, Sparse
from sparsyedge.edge.wire.sparse_tensor import encode_entries, nonzero_entries

__all__ = ["Coded", "compensate", "encode_with_feedback", "unpack_residual"]


@dataclass(frozen=True)
class Coded:
    """A frame, the receiver's result, and the difference to the original."""

    encoded: Encoded
    residual: bytes
    """Packed; empty if nothing was lost."""

    @property
    def frame(self) -> bytes:
        """The bytes to send."""
        return self.encoded.frame

    @property
    def decoded(self) -> Tensors:
        """What the receiver will decode; see Encoded."""
        return self.encoded.decoded


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
    packer = Packer()

    def keep(name: str, shape: tuple[int, ...], positions: Positions | None, lacking: FloatArray) -> None:
        packer.add(encode_entries(name, shape, _nonzeros(positions, lacking)))

    encoded = encode_frame(
        compensate(state, residual, prunable) if lossy else state,
        run=run,
        round_number=round_number,
        base_id=base_id,
        base=base,
        codec=used,
        prunable=prunable,
        lost=keep if lossy else None,
    )
    return Coded(encoded, packer.content() if lossy and set(prunable) & set(state) else b"")


def _nonzeros(positions: Positions | None, values: FloatArray) -> Sparse:
    """The values that are not zero, at these positions; None for all."""
    bits = values.view(np.uint32)
    kept = np.flatnonzero(bits)
    return Sparse(kept.astype(np.uint32) if positions is None else positions[kept], bits[kept])


def compensate(state: Tensors, residual: Tensors, prunable: Collection[str]) -> Tensors:
    """The state to send: adds the residual to entries that are still kept; never creates or removes an entry."""
    changed = set(prunable) & set(residual)
    return MadeOnDemand(
        state.keys(), lambda name: _compensated(state[name], residual[name]) if name in changed else state[name]
    )


def _compensated(tensor: FloatArray, residual: FloatArray) -> FloatArray:
    kept = nonzero_entries(tensor)
    entries = kept.values.view(np.float32)
    compensated = entries + residual.reshape(-1)[kept.positions]
    sent = np.zeros(tensor.shape, dtype=np.float32)
    # A sum of exactly zero would look like a pruned entry.
    sent.reshape(-1)[kept.positions] = np.where(compensated == 0, entries, compensated)
    return sent


def unpack_residual(content: bytes, shapes: Mapping[str, tuple[int, ...]]) -> Tensors:
    """Return the residual of the weights with these shapes; raises DamagedFileError where the bytes are not one."""
    return open_tensors(content).tensors(shapes) if content else {}
