"""Every method's graphs against torch, and what the step of each must leave alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sparsyedge.edge.artifacts import Artifacts
from sparsyedge.edge.dense_session import DenseSession
from sparsyedge.edge.errors import ArtifactError
from sparsyedge.edge.methods import METHODS
from sparsyedge.edge.prune import prune_global
from sparsyedge.edge.sparse_session import SparseSession
from sparsyedge.edge.tensors import State
from sparsyedge.export.verify import verify

Export = Callable[..., Artifacts]


def pruned_start(artifacts: Artifacts) -> tuple[DenseSession, State]:
    session = DenseSession(artifacts)
    return session, prune_global(session.state(), artifacts.manifest.prunable, 0.9)


def batch(size: int = 8) -> tuple[Any, Any]:
    rng = np.random.default_rng(5)
    return rng.standard_normal((size, 3, 16, 16), dtype=np.float32), rng.integers(0, 5, size)


def regrown(artifacts: Artifacts) -> int:
    """Prunable weights that were zero before two steps and are not after them."""
    session, start = pruned_start(artifacts)
    session.load(start)
    for _ in range(2):
        session.train_step(*batch(), 0.1)
    after = session.state()
    return sum(int(np.count_nonzero(after[n][start[n] == 0])) for n in artifacts.manifest.prunable)


@pytest.mark.parametrize("name", METHODS)
def test_a_teacher_forced_step_agrees_with_torch(name: str, export_method: Export) -> None:
    parity = verify(export_method(name))
    assert parity.steps == 3
    assert max(parity.loss, parity.gradient, parity.updated, parity.sparse or 0.0) <= 3e-5


@pytest.mark.parametrize("name", METHODS)
def test_zeros_grow_back_exactly_where_the_method_says_so(name: str, export_method: Export) -> None:
    artifacts = export_method(name)
    if artifacts.manifest.method.zero_grad_at_zero:
        assert regrown(artifacts) == 0
    else:
        assert regrown(artifacts) > 0


@pytest.mark.parametrize("name", METHODS)
def test_the_plain_graph_is_there_exactly_where_our_ops_can_compute_a_step(name: str, export_method: Export) -> None:
    artifacts = export_method(name)
    if artifacts.manifest.method.plain_graph:
        SparseSession(artifacts)
    else:
        assert "sparse_step" not in artifacts.manifest.files
        with pytest.raises(ArtifactError, match="needs more than our own ops"):
            SparseSession(artifacts)


def test_biases_and_norms_train_where_weights_are_masked(export_method: Export) -> None:
    artifacts = export_method("fixed-mask")
    session, start = pruned_start(artifacts)
    session.load(start)
    session.train_step(*batch(), 0.1)
    after = session.state()
    others = [p.name for p in artifacts.manifest.parameters if p.trainable and not p.prunable]
    assert all(np.count_nonzero(after[name] != start[name]) for name in others)
