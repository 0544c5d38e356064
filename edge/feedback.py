"""Error feedback: what a lossy frame leaves unsaid is said with the next one. Pure functions, no I/O.

    coded = encode_with_feedback(state, residual, base=..., codec="int8", ...)
    coded.frame, coded.decoded      # what travels, and what its receiver will hold
    residual = coded.residual       # for the next one

Devices do it with their updates, the coordinator with its models. The residual belongs to the frame: both are kept, or
neither (edge/outbox.py, coordinator/versions.py). It exists only where an entry is kept. Packed it takes little room.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from sparsyedge.edge.tensors import FloatArray, State
from sparsyedge.edge.wire import LOSSLESS, Codec, codec_for, decode_frame, encode_frame

__all__ = ["Coded", "compensate", "encode_with_feedback", "left_over", "pack_residual", "unpack_residual"]


@dataclass(frozen=True)
class Coded:
    """A frame, what its receiver will hold, and what that lacks."""

    frame: bytes
    decoded: State
    residual: State
    """Empty where nothing was lost."""


def encode_with_feedback(
    state: Mapping[str, FloatArray],
    residual: Mapping[str, FloatArray],
    *,
    run: str,
    round_number: int,
    base_id: str,
    base: Mapping[str, FloatArray] | None,
    codec: Codec,
    prunable: Collection[str],
) -> Coded:
    """The state with what the last frame left over, as a frame; without loss, the residual has nothing to say."""
    used = codec_for(codec, base)
    sent = dict(state) if used == LOSSLESS else compensate(state, residual, prunable)
    encoded = encode_frame(
        sent, run=run, round_number=round_number, base_id=base_id, base=base, codec=used, prunable=prunable
    )
    lost = {} if used == LOSSLESS else left_over(sent, encoded.decoded, prunable)
    return Coded(encoded.frame, encoded.decoded, lost)


def compensate(state: Mapping[str, FloatArray], residual: Mapping[str, FloatArray], prunable: Collection[str]) -> State:
    """The state to send: what was left over is added where an entry is still kept, and never makes or ends an entry."""
    sent = dict(state)
    for name in set(prunable) & set(residual):
        tensor = sent[name]
        kept = np.flatnonzero(tensor)
        entries = tensor.reshape(-1)[kept]
        compensated = entries + residual[name].reshape(-1)[kept]
        # A sum of exactly zero would look like a pruned entry.
        compensated = np.where(compensated == 0, entries, compensated)
        sent[name] = tensor.copy()
        sent[name].reshape(-1)[kept] = compensated
    return sent


def left_over(sent: Mapping[str, FloatArray], decoded: Mapping[str, FloatArray], prunable: Collection[str]) -> State:
    """What the receiver lacks of the state that was sent; zero for every entry that is not kept."""
    residual: State = {}
    for name in set(prunable) & set(sent):
        kept = np.flatnonzero(sent[name])
        residual[name] = np.zeros(sent[name].shape, dtype=np.float32)
        residual[name].reshape(-1)[kept] = sent[name].reshape(-1)[kept] - decoded[name].reshape(-1)[kept]
    return residual


def pack_residual(residual: Mapping[str, FloatArray]) -> bytes:
    """A residual as bytes for a file, itself a frame; nothing where there is none."""
    if not residual:
        return b""
    return encode_frame(residual, run="", round_number=0, base_id="", prunable=residual.keys()).frame


def unpack_residual(content: bytes, shapes: Mapping[str, tuple[int, ...]]) -> State:
    """The residual of the weights with these shapes; raises FrameError where the bytes are not one."""
    return decode_frame(content, shapes).state if content else {}
