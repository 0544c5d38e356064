"""What the update of a few steps weighs on the wire, from round 2 on: a difference to the model of the round."""

from __future__ import annotations

from sparsyedge.benchmarks.step.workload import LEARNING_RATE, Workload
from sparsyedge.edge.tensors import dense_bytes, model_id
from sparsyedge.edge.training.sparse_session import SparseSession
from sparsyedge.edge.wire.codecs import DEFAULT_CODEC, LOSSLESS
from sparsyedge.edge.wire.frame import frame_of

__all__ = ["update_bytes"]

CODECS = (LOSSLESS, DEFAULT_CODEC)
STEPS = 10
FIRST_SPARSE = 2
"""The first round that starts from a model which both sides hold."""


def update_bytes(workload: Workload) -> dict[str, int]:
    """The bytes of an update by codec, and as plain float32."""
    session = SparseSession(workload.artifacts, threads=workload.threads)
    session.load(workload.state)
    for _ in range(STEPS):
        session.train_step(workload.x, workload.y, LEARNING_RATE)
    trained = session.state()
    base_id, prunable = model_id(workload.state), workload.artifacts.manifest.prunable
    frames = {
        codec: frame_of(
            trained,
            run="bench",
            round_number=FIRST_SPARSE,
            base_id=base_id,
            base=workload.state,
            codec=codec,
            prunable=prunable,
        )
        for codec in CODECS
    }
    return {**{codec: len(frame) for codec, frame in frames.items()}, "float32": dense_bytes(trained)}
