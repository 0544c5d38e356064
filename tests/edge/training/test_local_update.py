"""What a device sends of a trained model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from fixtures.forgetful import Forgetful

from sparsyedge.edge.data import Labels
from sparsyedge.edge.model.methods import make_method
from sparsyedge.edge.model.prune import prune_global
from sparsyedge.edge.tensors import FloatArray, State
from sparsyedge.edge.training.augment import Mixed
from sparsyedge.edge.training.job_inputs import NO_INPUTS, JobInputs
from sparsyedge.edge.training.local_update import exchange_weights, finish_update, needs_start, start_state, step_rule
from sparsyedge.edge.training.session import Kind
from sparsyedge.edge.training.trainer import LocalJob

PRUNABLE = ("a", "b")


def make_state(seed: int) -> State:
    rng = np.random.default_rng(seed)
    shapes = {"a": (4, 5), "b": (30,), "bias": (3,)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def test_dense_sends_the_model_whole() -> None:
    trained = make_state(1)
    update = finish_update(make_method("dense"), trained, prunable=PRUNABLE, sparsity=0.0)
    assert all(np.array_equal(update[name], trained[name]) for name in trained)


def test_pruned_weights_are_the_largest_of_all_layers_together() -> None:
    trained = make_state(1)
    update = finish_update(make_method("topk"), trained, prunable=PRUNABLE, sparsity=0.8)
    kept = np.concatenate([update[name].reshape(-1) for name in PRUNABLE])
    magnitudes = np.sort(np.abs(np.concatenate([trained[name].reshape(-1) for name in PRUNABLE])))
    assert np.count_nonzero(kept) == 10
    assert np.array_equal(np.sort(np.abs(kept[kept != 0])), magnitudes[-10:])
    assert np.array_equal(update["bias"], trained["bias"])


def test_pruned_changes_leave_all_other_weights_as_they_were_received() -> None:
    method = make_method("sparsyfed", uplink="delta")
    start, trained = make_state(1), make_state(2)
    assert needs_start(method)
    update = finish_update(method, trained, prunable=PRUNABLE, sparsity=0.8, start=start)
    changed = {name: update[name] != start[name] for name in PRUNABLE}
    assert sum(int(mask.sum()) for mask in changed.values()) == 10
    assert all(np.array_equal(update[name][changed[name]], trained[name][changed[name]]) for name in PRUNABLE)
    smallest_kept = min(np.abs(trained[n] - start[n])[changed[n]].min(initial=np.inf) for n in PRUNABLE)
    largest_dropped = max(np.abs(trained[n] - start[n])[~changed[n]].max(initial=0) for n in PRUNABLE)
    assert smallest_kept >= largest_dropped


def test_a_group_prunes_the_received_model_to_its_own_target_before_training() -> None:
    received = make_state(1)
    common = make_method("topk", sparsity=0.8)
    grouped = make_method("topk", sparsities=[0.9, 0.8], shares=[1, 1])
    assert start_state(common, received, prunable=PRUNABLE, sparsity=0.8) is received
    start = start_state(grouped, received, prunable=PRUNABLE, sparsity=0.9)
    assert sum(np.count_nonzero(start[name]) for name in PRUNABLE) == 5


class RecordingSession(Forgetful):
    """Holds a state and takes no steps."""

    kind: Kind = "dense"

    def __init__(self, state: State) -> None:
        self._state = dict(state)

    def load(self, state: Mapping[str, FloatArray]) -> None:
        self._state = dict(state)

    def state(self) -> State:
        return dict(self._state)

    def train_step(
        self,
        x: FloatArray,
        y: Labels,
        learning_rate: float,
        mixed: Mixed | None = None,
        seed: int = 0,
        inputs: JobInputs = NO_INPUTS,
    ) -> float:
        raise AssertionError("these tests prune and encode, they never train")


def make_job(round_number: int) -> LocalJob:
    return LocalJob("device-7", round_number, seed=1, epochs=1, batch_size=2, learning_rate=0.1)


def nonzeros(state: State) -> dict[str, int]:
    return {name: int(np.count_nonzero(state[name])) for name in PRUNABLE}


def test_an_exchange_moves_a_quarter_of_each_layer_and_keeps_the_count() -> None:
    before = prune_global(make_state(1), PRUNABLE, 0.5)
    after = exchange_weights(before, PRUNABLE, 0.25, seed=[1, 2])
    assert nonzeros(after) == nonzeros(before)
    for name in PRUNABLE:
        gone = (before[name] != 0) & (after[name] == 0)
        stayed = (before[name] != 0) & (after[name] == before[name])
        assert int(stayed.sum()) == nonzeros(before)[name] - nonzeros(before)[name] // 4
        assert np.abs(before[name][gone]).max(initial=0) <= np.abs(before[name][stayed]).min()
        assert np.abs(after[name][~stayed]).max() < 1e-7


def test_the_same_seed_exchanges_the_same_weights() -> None:
    before = prune_global(make_state(1), PRUNABLE, 0.5)
    first, again, other = (exchange_weights(before, PRUNABLE, 0.25, seed=seed) for seed in ([1, 2], [1, 2], [1, 3]))
    assert all(np.array_equal(first[name], again[name]) for name in PRUNABLE)
    assert any(not np.array_equal(first[name], other[name]) for name in PRUNABLE)


def test_a_device_exchanges_weights_once_in_the_middle_of_the_epoch() -> None:
    session = RecordingSession(prune_global(make_state(1), PRUNABLE, 0.5))
    rule = step_rule(make_method("flash-jmwst"), session, PRUNABLE, make_job(2))
    assert rule is not None
    changed = []
    for number in range(5):
        before = session.state()
        rule(number, 5)
        changed.append(any(not np.array_equal(session.state()[name], before[name]) for name in PRUNABLE))
    assert changed == [False, False, True, False, False]


@pytest.mark.parametrize(("interval", "rounds"), [(1, [2, 3, 4, 5, 6, 7]), (5, [2, 7])])
def test_the_mask_evolves_in_every_so_many_rounds(interval: int, rounds: list[int]) -> None:
    method = make_method("flash-jmwst", mask_interval=interval)
    session = RecordingSession(make_state(1))
    evolving = [n for n in range(1, 8) if step_rule(method, session, PRUNABLE, make_job(n)) is not None]
    assert evolving == rounds


def test_zerofl_in_place_forgets_what_a_step_does_not_use() -> None:
    session = RecordingSession(make_state(1))
    rule = step_rule(make_method("zerofl", sparsity=0.8, prune_weights="in-place"), session, PRUNABLE, make_job(1))
    assert rule is not None
    rule(0, 1)
    assert nonzeros(session.state()) == {"a": 20, "b": 6}  # the first layer stays dense
    assert step_rule(make_method("zerofl"), session, PRUNABLE, make_job(1)) is None
