"""Our contestant: the sparse step, a plain session over the non-zero weights."""

from __future__ import annotations

from sparsyedge.benchmarks.step.workload import LEARNING_RATE, Workload
from sparsyedge.edge.training.sparse_session import SparseSession

__all__ = ["SparseStep"]


class SparseStep:
    """Forward, loss, backward and update of the non-zeros."""

    def __init__(self, workload: Workload, *, variant: str) -> None:
        self._workload = workload
        self._session = SparseSession(workload.artifacts, threads=workload.threads)
        self._session.load(workload.state)

    def step(self) -> float:
        """Take one step of SGD and return the loss before it."""
        return self._session.train_step(self._workload.x, self._workload.y, LEARNING_RATE)
