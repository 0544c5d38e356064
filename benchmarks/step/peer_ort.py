"""The peer in ONNX Runtime: the same method through the training API, with stock convolutions and gradients."""

from __future__ import annotations

from sparsyedge.benchmarks.step.workload import LEARNING_RATE, Workload
from sparsyedge.edge.training.dense_session import DenseSession

__all__ = ["StockStep"]


class StockStep:
    """The dense graph that devices train in round 1."""

    def __init__(self, workload: Workload, *, variant: str) -> None:
        self._workload = workload
        self._session = DenseSession(workload.artifacts, threads=workload.threads)
        self._session.load(workload.state)

    def step(self) -> float:
        """Take one step of SGD and return the loss before it."""
        return self._session.train_step(self._workload.x, self._workload.y, LEARNING_RATE)
