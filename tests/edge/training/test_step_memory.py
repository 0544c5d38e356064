"""Memory of a step in the plain graph: weights are overwritten where they lie, and a session that rests holds none."""

from __future__ import annotations

import numpy as np
import pytest

from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.checkpoint import read_initial_state
from sparsyedge.edge.tensors import State, model_id
from sparsyedge.edge.training.session_holder import SessionHolder
from sparsyedge.edge.training.sparse_session import SparseSession

pytestmark = pytest.mark.heavy

RNG = np.random.default_rng(0)
BATCHES = [(RNG.standard_normal((8, 3, 16, 16), dtype=np.float32), RNG.integers(0, 5, 8)) for _ in range(2)]
RATE = 0.1


def weights_of(session: SparseSession) -> dict[str, int]:
    """Where the arrays of the weights lie."""
    feeds = session.feeds(*BATCHES[0], RATE)
    return {name: array.ctypes.data for name, array in feeds.items() if name.endswith(".values")}


def trained(session: SparseSession, state: State) -> str:
    session.load(state)
    for batch in BATCHES:
        session.train_step(*batch, RATE)
    return model_id(session.state())


def test_step_writes_new_weights_over_the_old_ones(tiny: Artifacts) -> None:
    session = SparseSession(tiny)
    state = read_initial_state(tiny)
    session.load(state)
    before = weights_of(session)
    session.train_step(*BATCHES[0], RATE)
    assert weights_of(session) == before
    after = session.state()
    assert all((after[name] != state[name]).any() for name in tiny.manifest.prunable)


def test_steps_leave_the_loaded_state_as_it_was(tiny: Artifacts) -> None:
    state = read_initial_state(tiny)
    trained(SparseSession(tiny), state)
    assert model_id(state) == tiny.manifest.initial_model


def test_session_that_rested_keeps_its_model_and_trains_the_same_again(tiny: Artifacts) -> None:
    session, state = SparseSession(tiny), read_initial_state(tiny)
    first = trained(session, state)
    session.rest()
    assert model_id(session.state()) == first
    assert trained(session, state) == first


def test_holder_of_a_device_closes_the_graph_and_opens_it_for_the_next_round(tiny: Artifacts) -> None:
    holder = SessionHolder(runtime="stock", rests=True)
    holder.put(tiny, "manifest")
    losses = []
    for round_number in (1, 2):
        session = holder.session(None, round_number=round_number)
        losses.append(session.train_step(*BATCHES[0], RATE))
        holder.rest()
        assert session.state().keys() == tiny.manifest.shapes.keys()
    assert losses[0] == losses[1]
