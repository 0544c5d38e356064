"""What a device sends of a trained model."""

from __future__ import annotations

import numpy as np

from sparsyedge.edge.local_update import finish_update, needs_start, start_state
from sparsyedge.edge.methods import make_method
from sparsyedge.edge.tensors import State

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
