"""Round 1, with dense weights: the dense graph with our ops against the same graph without them."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path

import onnx
from onnx import helper

from sparsyedge.benchmarks.step.measure import measure
from sparsyedge.benchmarks.step.workload import LEARNING_RATE, Workload
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.native import OP_DOMAIN
from sparsyedge.edge.tensors import State
from sparsyedge.edge.training.dense_session import DenseSession
from sparsyedge.edge.training.session import Session
from sparsyedge.edge.training.sparse_session import SparseSession

__all__ = ["DENSE_ROUND", "dense_round_ms", "without_our_ops"]

DENSE_ROUND = ("training_api", "training_api_stock", "plain_session")
"""Round 1 with the training API, the same graph without our ops, and our own kernels on all weights."""


class _SessionStep:
    """A session and the batch that it trains on."""

    def __init__(self, session: Session, workload: Workload, state: State) -> None:
        self._session, self._workload = session, workload
        session.load(state)

    def step(self) -> float:
        return self._session.train_step(self._workload.x, self._workload.y, LEARNING_RATE)


def dense_round_ms(workload: Workload, initial: State, folder: Path, *, steps: int) -> Mapping[str, float]:
    """The median milliseconds of a step from dense weights, by name; all take turns in this process."""
    artifacts, threads = workload.artifacts, workload.threads
    sessions: tuple[Session, ...] = (
        DenseSession(artifacts, threads=threads),
        DenseSession(without_our_ops(artifacts, folder), threads=threads),
        SparseSession(artifacts, threads=threads),
    )
    named = {
        name: _SessionStep(session, workload, initial) for name, session in zip(DENSE_ROUND, sessions, strict=True)
    }
    return {name: timing.median_ms for name, timing in measure(named, steps=steps).items()}


def without_our_ops(artifacts: Artifacts, folder: Path) -> Artifacts:
    """A copy of the artifacts in which our ops just pass on their first input: plain dense SGD with stock ops."""
    shutil.copytree(artifacts.directory, folder)
    copy = dataclasses.replace(artifacts, directory=folder)
    path = copy.path("training")
    graph = onnx.load(path)
    nodes = [
        helper.make_node("Identity", node.input[:1], node.output[:1], name=node.name)
        if node.domain == OP_DOMAIN
        else onnx.NodeProto.FromString(node.SerializeToString())
        for node in graph.graph.node
    ]
    del graph.graph.node[:]
    graph.graph.node.extend(nodes)
    onnx.save(graph, path)
    return copy
