"""Training over the non-zeros: the same steps as the dense graph, the mask for ever, and when it is chosen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fixtures.training_api import NEEDS_TRAINING_API
from numpy.typing import NDArray

from sparsyedge.edge.data import Samples
from sparsyedge.edge.errors import ArtifactError, TrainingError
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.checkpoint import read_initial_state
from sparsyedge.edge.model.prune import prune_global
from sparsyedge.edge.tensors import State, model_id
from sparsyedge.edge.training.dense_session import DenseSession
from sparsyedge.edge.training.session import choose_kind, remaining_work
from sparsyedge.edge.training.sparse_session import SparseSession
from sparsyedge.edge.training.trainer import LocalJob, train

RATE = 0.1


def batch(size: int, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((size, 3, 16, 16), dtype=np.float32), rng.integers(0, 5, size)


@pytest.fixture(scope="session")
def pruned(tiny: Artifacts) -> State:
    """The tiny model's initial weights at 80 % sparsity, with other parameters away from their trivial values."""
    state = prune_global(read_initial_state(tiny), tiny.manifest.prunable, 0.8)
    rng = np.random.default_rng(5)
    for parameter in tiny.manifest.parameters:
        if not parameter.prunable:
            state[parameter.name] = rng.uniform(0.5, 1.5, parameter.shape).astype(np.float32)
    return state


def stepped(session: DenseSession | SparseSession, state: State, size: int) -> tuple[float, State]:
    session.load(state)
    loss = session.train_step(*batch(size), RATE)
    return loss, session.state()


def test_a_state_that_is_loaded_comes_back_bit_for_bit(tiny: Artifacts, pruned: State) -> None:
    session = SparseSession(tiny)
    session.load(pruned)
    assert model_id(session.state()) == model_id(pruned)


@pytest.mark.parametrize("moved", [False, True], ids=["the same mask", "another mask with as many weights"])
def test_a_step_does_not_depend_on_what_the_session_had_loaded_before(
    tiny: Artifacts, pruned: State, moved: bool
) -> None:
    name = tiny.manifest.prunable[0]
    before = {**pruned, name: np.roll(pruned[name], 1) if moved else 2 * pruned[name]}
    session = SparseSession(tiny)
    stepped(session, before, 4)
    loss, after = stepped(session, pruned, 4)
    expected_loss, expected = stepped(SparseSession(tiny), pruned, 4)
    assert (loss, model_id(after)) == (expected_loss, model_id(expected))


@NEEDS_TRAINING_API
@pytest.mark.parametrize("size", [1, 2, 5, 15, 16, 17, 40])
def test_a_step_equals_that_of_the_dense_graph_for_every_size_of_batch(
    tiny: Artifacts, pruned: State, size: int
) -> None:
    loss, after = stepped(SparseSession(tiny), pruned, size)
    expected_loss, expected = stepped(DenseSession(tiny), pruned, size)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    # One activation on the other side of a threshold moves a value by this much; a wrong step by far more.
    for name, value in expected.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-2, atol=2e-3, err_msg=name)


def test_results_do_not_depend_on_the_number_of_threads(tiny: Artifacts, pruned: State) -> None:
    one, two, three = (stepped(SparseSession(tiny, threads=threads), pruned, 21) for threads in (1, 2, 3))
    assert one[0] == two[0] == three[0]
    assert model_id(one[1]) == model_id(two[1]) == model_id(three[1])


def test_zeros_stay_zero_and_non_zeros_learn(tiny: Artifacts, pruned: State) -> None:
    session = SparseSession(tiny)
    session.load(pruned)
    x, y = batch(40)
    before = session.train_step(x, y, RATE)
    train(session, Samples(x, y), LocalJob("pi-01", 2, seed=0, epochs=8, batch_size=16, learning_rate=RATE))
    after = session.state()
    for name in tiny.manifest.prunable:
        np.testing.assert_array_equal(after[name] != 0, pruned[name] != 0, err_msg=name)
    assert session.train_step(x, y, 1e-6) < before


@NEEDS_TRAINING_API
def test_an_empty_layer_trains_as_in_the_dense_graph(tiny: Artifacts, pruned: State) -> None:
    empty = {
        name: np.zeros_like(value) if name.startswith("layer4.1.conv") else value for name, value in pruned.items()
    }
    loss, after = stepped(SparseSession(tiny), empty, 16)
    expected_loss, expected = stepped(DenseSession(tiny), empty, 16)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert not np.any(after["layer4.1.conv1.weight"])
    np.testing.assert_allclose(after["layer4.1.bn1.bias"], expected["layer4.1.bn1.bias"], rtol=1e-2, atol=2e-3)


@NEEDS_TRAINING_API
def test_a_dense_model_can_be_trained_too(tiny: Artifacts) -> None:
    state = read_initial_state(tiny)
    loss, after = stepped(SparseSession(tiny), state, 16)
    expected_loss, expected = stepped(DenseSession(tiny), state, 16)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    np.testing.assert_allclose(after["fc.weight"], expected["fc.weight"], rtol=1e-2, atol=2e-3)


@NEEDS_TRAINING_API
def test_without_activation_pruning_a_step_equals_that_of_the_dense_graph(
    export_tiny: Callable[..., Artifacts], pruned: State
) -> None:
    artifacts = export_tiny(prune_activations=False)
    _, after = stepped(SparseSession(artifacts), pruned, 16)
    _, expected = stepped(DenseSession(artifacts), pruned, 16)
    for name, value in expected.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-2, atol=2e-3, err_msg=name)


def test_an_empty_batch_is_refused_in_a_sentence(tiny: Artifacts, pruned: State) -> None:
    session = SparseSession(tiny)
    session.load(pruned)
    with pytest.raises(TrainingError, match=r"\(0, 3, 16, 16\)"):
        session.train_step(*batch(0), RATE)


def test_a_label_out_of_range_is_refused_in_a_sentence(tiny: Artifacts, pruned: State) -> None:
    session = SparseSession(tiny)
    session.load(pruned)
    x, y = batch(4)
    with pytest.raises(TrainingError, match="label"):
        session.train_step(x, y + 100, RATE)


def test_a_weight_that_is_not_a_number_reaches_the_loss(tiny: Artifacts, pruned: State) -> None:
    state = {name: value.copy() for name, value in pruned.items()}
    weights = state["layer1.0.conv1.weight"].reshape(-1)
    weights[np.flatnonzero(weights)[0]] = np.nan
    loss, _ = stepped(SparseSession(tiny), state, 8)
    assert np.isnan(loss)


def test_zeros_grow_back_where_the_method_lets_them(export_tiny: Callable[..., Artifacts], pruned: State) -> None:
    session = SparseSession(export_tiny(beta=1.0))
    _, after = stepped(session, pruned, 8)
    name = "layer1.0.conv1.weight"
    assert np.count_nonzero(after[name]) > np.count_nonzero(pruned[name])


def test_a_damaged_graph_is_refused_in_a_sentence(tiny: Artifacts, tmp_path: Path) -> None:
    for file in tiny.manifest.files.values():
        (tmp_path / file.name).write_bytes((tiny.directory / file.name).read_bytes())
    (tmp_path / tiny.manifest.files["sparse_step"].name).write_bytes(b"no graph")
    with pytest.raises(ArtifactError, match=r"cannot load .*sparse_step"):
        SparseSession(Artifacts(tmp_path, tiny.manifest))


@NEEDS_TRAINING_API
def test_round_one_is_trained_dense_and_later_rounds_sparse(tiny: Artifacts, pruned: State) -> None:
    dense = read_initial_state(tiny)
    assert choose_kind(tiny.manifest, dense, "training") == "dense"
    assert choose_kind(tiny.manifest, pruned, "training") == "sparse"
    assert remaining_work(tiny.manifest, dense) == 1
    assert 0 < remaining_work(tiny.manifest, pruned) < 0.5


@NEEDS_TRAINING_API
def test_a_method_whose_zeros_grow_back_is_always_trained_dense(
    export_tiny: Callable[..., Artifacts], pruned: State
) -> None:
    assert choose_kind(export_tiny(beta=1.0).manifest, pruned, "training") == "dense"
