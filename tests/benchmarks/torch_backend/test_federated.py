"""The methods in plain torch beside those of devices and coordinator: the same updates, masks and models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.dense_way import combine
from fixtures.training_api import first_session

from sparsyedge.benchmarks.torch_backend import TorchRun, run_rounds
from sparsyedge.benchmarks.torch_backend.federated import evaluate
from sparsyedge.benchmarks.torch_backend.server import next_model
from sparsyedge.benchmarks.torch_backend.torch_device import Work, select_update, train_on_device
from sparsyedge.edge.data import Dataset, Samples
from sparsyedge.edge.inference.eval_session import EvalSession
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.checkpoint import read_initial_state
from sparsyedge.edge.model.methods import METHODS, make_method
from sparsyedge.edge.model.prune import keep_largest
from sparsyedge.edge.tensors import State
from sparsyedge.edge.training.job_inputs import inputs_of
from sparsyedge.edge.training.local_update import finish_update, start_state, step_rule
from sparsyedge.edge.training.session import Session
from sparsyedge.edge.training.sparse_session import SparseSession
from sparsyedge.edge.training.trainer import LocalJob, train
from sparsyedge.export.model_spec import ModelSpec
from sparsyedge.export.models import build_model

SPEC = ModelSpec("resnet18", width=4, classes=5, input_shape=(3, 16, 16))
RATE = 1e-3
"""So small that rounding cannot grow over the steps of a round."""
ROUNDS = 3
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in METHODS),
    ("sparsyfed", {"uplink": "delta"}),
    ("topk", {"aggregation": "nonzero-mean"}),
    ("zerofl", {"prune_weights": "in-place"}),
    ("sparsyfed", {"sparsities": (0.95, 0.8), "shares": (1, 1)}),
    ("sparsyfed", {"activation_floor": 0.2}),
    ("auto-beta", {"activation_threshold": "round"}),
    ("flash", {"zero_biases": "frozen"}),
    ("flash-jmwst", {"regrowth": "free", "mask_interval": 2}),
    ("sparsyfed", {"allocation": "erk"}),
    ("sparsyfed", {"allocation": "lamp", "sparsities": (0.95, 0.8), "shares": (1, 1)}),
    ("fixed-mask", {"allocation": "lamp", "allocation_price": 0.5}),
    ("spectral", {"sigma": "exact"}),
    ("sparsyfed", {"activation_warmup": 2}),
]


def make_samples(count: int, seed: int) -> Samples:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, *SPEC.input_shape), dtype=np.float32)
    return Samples(x, np.arange(count) % SPEC.classes)


def to_torch(state: State) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(value.copy()) for name, value in state.items()}


def to_numpy(state: dict[str, torch.Tensor]) -> State:
    return {name: value.cpu().numpy() for name, value in state.items()}


def update_on_runtime(
    session: Session, artifacts: Artifacts, model: State, samples: Samples, job: LocalJob
) -> tuple[State, State, State]:
    """What a device of the real runtime sends, what it had trained before pruning, and what it began with."""
    method, prunable = artifacts.manifest.method, artifacts.manifest.prunable
    sparsity = method.sparsity_of(job.device_id, job.round_number)
    positions = artifacts.manifest.positions
    start = model
    if job.round_number > 1:
        start = start_state(method, model, prunable=prunable, sparsity=sparsity, positions=positions)
    session.load(start)
    plane = min(norm.plane for norm in artifacts.manifest.batch_norms)
    train(session, samples, job, before_step=step_rule(method, session, prunable, job), smallest_plane=plane)
    trained = session.state()
    update = finish_update(method, trained, prunable=prunable, sparsity=sparsity, start=start, positions=positions)
    return update, trained, start


def difference(ours: State, theirs: State, start: State) -> float:
    """How far the parameters of two trained models are apart, beside how far training moved them.

    Not zero: a ReLU or an input next to its threshold falls to one side here and to the other there. Running statistics
    move a hundred times as far, whatever the gradients are, so that nothing could be told with them.
    """
    parameters = [name for name in ours if "running_" not in name]
    apart = np.concatenate([(ours[name] - theirs[name]).reshape(-1) for name in parameters])
    moved = np.concatenate([(theirs[name] - start[name]).reshape(-1) for name in parameters])
    return float(np.linalg.norm(apart) / np.linalg.norm(moved))


def test_a_device_shifts_its_logits_as_plain_torch_does(export_training: Callable[..., Artifacts]) -> None:
    artifacts = export_training(label_shift=1.0)
    samples = make_samples(9, seed=0)
    samples = Samples(samples.x, np.array([0, 0, 0, 0, 0, 1, 1, 3, 0]))
    told = inputs_of(artifacts.manifest, samples.y, 1)
    job = LocalJob("device-0", 1, seed=4, epochs=2, batch_size=4, learning_rate=RATE, inputs=told)
    model = read_initial_state(artifacts)
    _, trained, start = update_on_runtime(SparseSession(artifacts), artifacts, model, samples, job)
    method, positions = artifacts.manifest.method, artifacts.manifest.positions
    apart = {}
    for shift in (0.0, 1.0):
        work = Work(
            device="device-0",
            round_number=1,
            seed=4,
            epochs=2,
            batch_size=4,
            learning_rate=RATE,
            label_shift=shift,
            classes=SPEC.classes,
        )
        module = build_model(SPEC, beta=method.beta, seed=3)
        _, mine = train_on_device(module, method, to_torch(model), samples, work, positions)
        apart[shift] = difference(to_numpy(mine), trained, start)
    assert apart[1.0] < 0.05 < apart[0.0]


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_three_rounds_come_to_the_same_model(
    name: str, options: dict[str, Any], export_method: Callable[..., Artifacts], tmp_path: Path
) -> None:
    artifacts = export_method(name, **options)
    method, prunable, positions = artifacts.manifest.method, artifacts.manifest.prunable, artifacts.manifest.positions
    module = build_model(SPEC, beta=method.beta, seed=3)
    model = read_initial_state(artifacts)
    # Thresholds of a round, and a warm-up, are kept by the plain graph alone.
    is_plain = method.activation_threshold == "round" or method.warms_up
    session = SparseSession(artifacts) if is_plain else first_session(artifacts)
    for number in range(1, ROUNDS + 1):
        updates: list[tuple[int, State]] = []
        for device in ("device-0", "device-1"):
            samples = make_samples(9 if device == "device-0" else 6, seed=len(updates))
            told = inputs_of(artifacts.manifest, samples.y, number)
            job = LocalJob(device, number, seed=4, epochs=1, batch_size=4, learning_rate=RATE, inputs=told)
            work = Work(device=device, round_number=number, seed=4, epochs=1, batch_size=4, learning_rate=RATE)
            update, trained, start = update_on_runtime(session, artifacts, model, samples, job)
            _, mine = train_on_device(module, method, to_torch(model), samples, work, positions)
            assert difference(to_numpy(mine), trained, start) < 0.05
            # What is sent of one and the same trained model is the same to the bit.
            sparsity = method.sparsity_of(device, number)
            selected = select_update(method, to_torch(trained), to_torch(start), positions, sparsity)
            assert selected.keys() == update.keys()
            assert all(np.array_equal(update[tensor], selected[tensor].numpy()) for tensor in update)
            updates.append((len(samples), update))
        # Both servers get what devices sent, so that their rules alone are compared.
        combined = combine(updates, artifacts.manifest, model, tmp_path, round_number=number, rounds=ROUNDS)
        reference = next_model(
            method,
            [(count, to_torch(update)) for count, update in updates],
            positions,
            round_number=number,
            rounds=ROUNDS,
        )
        for tensor in combined:
            np.testing.assert_allclose(combined[tensor], reference[tensor].numpy(), rtol=1e-6, atol=1e-9)
            if tensor in prunable:
                assert np.array_equal(combined[tensor] != 0, reference[tensor].numpy() != 0)
        model = combined


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sparsyfed", {}),
        ("auto-beta", {}),
        ("spectral", {}),
        ("spectral", {"sigma": "exact"}),
        ("zerofl", {}),
        ("zerofl", {"inference": "trained"}),
    ],
)
def test_both_evaluate_a_model_alike(
    name: str, options: dict[str, Any], export_method: Callable[..., Artifacts]
) -> None:
    artifacts = export_method(name, **options)
    state = read_initial_state(artifacts)
    session = EvalSession(artifacts)
    session.load(state)
    samples = make_samples(20, seed=1)
    loss, _ = session.evaluate(*samples.batch(np.arange(20)))
    method = artifacts.manifest.method
    module = build_model(SPEC, beta=method.beta, seed=3)
    figures = evaluate(module, method, to_torch(state), samples, list(artifacts.manifest.prunable))
    assert figures["test_loss"] == pytest.approx(loss, rel=1e-4)


def test_a_model_evaluated_as_trained_has_the_largest_weights_of_each_layer_alone(
    export_method: Callable[..., Artifacts],
) -> None:
    artifacts = export_method("zerofl", inference="trained")
    method, (first, *others) = artifacts.manifest.method, artifacts.manifest.prunable
    state = read_initial_state(artifacts)
    pruned = state | {name: keep_largest(state[name], method.density) for name in others}
    session = EvalSession(artifacts)
    batch = make_samples(20, seed=1).batch(np.arange(20))
    losses = []
    for each in (state, pruned, pruned | {first: keep_largest(state[first], method.density)}):
        session.load(each)
        losses.append(session.evaluate(*batch)[0])
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.heavy
def test_a_run_says_what_its_rounds_came_to() -> None:
    train_part, test_part = make_samples(60, seed=1), make_samples(20, seed=2)
    run = TorchRun(
        spec=SPEC,
        method=make_method("sparsyfed", sparsity=0.8),
        devices=6,
        cohort=3,
        rounds=4,
        seed=1,
        alpha=1000.0,
        learning_rate=0.2,
        last_learning_rate=0.1,
        eval_every=4,
    )
    rounds = list(run_rounds(run, Dataset("noise", train_part, test_part, 5)))
    assert [row["round"] for row in rounds] == [1, 2, 3, 4]
    assert [row["nestedness"] for row in rounds[1:]] == [1.0] * 3
    assert [row["regrown_devices"] for row in rounds[1:]] == [0.0] * 3
    assert rounds[-1]["global_sparsity"] >= 0.75
    assert 0 <= rounds[-1]["test_accuracy"] <= 1
    assert rounds[-1]["nonzeros_up"] < rounds[0]["nonzeros_down"]
    assert "test_accuracy" not in rounds[0]
