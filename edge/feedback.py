"""Error feedback: what a lossy update leaves unsaid is said with the next one. Pure functions, no I/O.

    sent = compensate(state, residual, prunable)
    encoded = encode_frame(sent, base=..., codec="int8", ...)
    residual = left_over(sent, encoded.decoded, prunable)

The residual belongs to the update that was encoded: both are kept, or neither. It starts empty, and a device that
starts over (another run, no update in the outbox) drops it. Encoded as a lossless frame it takes little room on disk.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from sparsyedge.edge.tensors import FloatArray, State

__all__ = ["compensate", "left_over"]


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
