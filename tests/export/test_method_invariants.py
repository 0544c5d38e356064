"""What the method promises (zero stays zero, pruning touches one gradient alone, ...), on the exported graphs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from fixtures.dense_way import average
from fixtures.training_api import NEEDS_TRAINING_API, evaluate, first_session
from numpy.typing import NDArray

from sparsyedge.edge.data import Samples
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.checkpoint import read_initial_state
from sparsyedge.edge.model.prune import prune_global, removed_count
from sparsyedge.edge.tensors import State, count_nonzero
from sparsyedge.edge.training.trainer import LocalJob, train
from sparsyedge.export.agreement import _GradientProbe
from sparsyedge.export.model_spec import ModelSpec
from sparsyedge.export.models import build_model

Export = Callable[..., Artifacts]
RATE = 0.1


def batch(size: int = 8, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((size, 3, 16, 16), dtype=np.float32), rng.integers(0, 5, size)


def torch_twin(artifacts: Artifacts, state: State) -> torch.nn.Module:
    """A plain torch model whose weights are theta: what the graphs compute with."""
    manifest = artifacts.manifest
    spec = ModelSpec(manifest.model, manifest.width, manifest.classes, manifest.input_shape)
    model = build_model(spec, beta=1.0, seed=0)
    beta, prunable = manifest.method.beta, set(manifest.prunable)
    theta = {name: np.sign(w) * np.abs(w) ** beta if name in prunable else w for name, w in state.items()}
    model.load_state_dict({name: torch.from_numpy(value) for name, value in theta.items()}, strict=False)
    return model.train()


def test_a_zero_weight_stays_exactly_zero_over_training_steps(tiny: Artifacts) -> None:
    session = first_session(tiny)
    pruned = prune_global(session.state(), tiny.manifest.prunable, 0.9)
    session.load(pruned)
    for step in range(4):
        session.train_step(*batch(seed=step), RATE)
    after = session.state()
    for name in tiny.manifest.prunable:
        assert np.all(after[name][pruned[name] == 0] == 0), name
        assert np.any(after[name] != pruned[name]) or not np.any(pruned[name]), name


def test_with_beta_one_pruned_weights_grow_back(export_tiny: Export) -> None:
    artifacts = export_tiny(beta=1.0)
    session = first_session(artifacts)
    pruned = prune_global(session.state(), artifacts.manifest.prunable, 0.9)
    session.load(pruned)
    session.train_step(*batch(), RATE)
    after = session.state()
    assert count_nonzero(after, artifacts.manifest.prunable) > 2 * count_nonzero(pruned, artifacts.manifest.prunable)


def test_with_beta_one_and_dense_weights_a_step_is_plain_sgd_with_weight_decay(export_tiny: Export) -> None:
    artifacts = export_tiny(beta=1.0)
    session = first_session(artifacts)
    state = session.state()
    model = torch_twin(artifacts, state)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, weight_decay=1e-3)
    x, y = batch()
    torch.nn.functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y)).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    session.train_step(x, y, RATE)
    after = session.state()
    for name, expected in model.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            np.testing.assert_allclose(after[name], expected.numpy(), rtol=1e-4, atol=1e-6, err_msg=name)


@NEEDS_TRAINING_API
@pytest.mark.parametrize("name", ["conv1.weight", "bn1.weight", "layer2.0.bn1.bias", "fc.weight", "fc.bias"])
def test_weight_decay_adds_its_share_of_every_parameter_to_the_gradient(export_tiny: Export, name: str) -> None:
    with_decay, without = export_tiny(weight_decay=1e-3), export_tiny(weight_decay=0.0)
    state = {key: value + np.float32(0.25) for key, value in read_initial_state(with_decay).items()}
    gradients = [_GradientProbe(artifacts).run(state, *batch())[0][name] for artifacts in (with_decay, without)]
    np.testing.assert_allclose(gradients[0] - gradients[1], 1e-3 * state[name], rtol=2e-2, atol=1e-6)


def test_a_step_without_decay_differs_from_one_with_it_on_every_trainable_parameter(export_tiny: Export) -> None:
    updated = []
    for weight_decay in (0.0, 0.5):
        session = first_session(export_tiny(weight_decay=weight_decay))
        session.load({name: value + np.float32(0.25) for name, value in session.state().items()})
        session.train_step(*batch(), RATE)
        updated.append(session.state())
    for parameter in export_tiny().manifest.parameters:
        if parameter.trainable:
            assert np.any(updated[0][parameter.name] != updated[1][parameter.name]), parameter.name


@NEEDS_TRAINING_API
def test_dense_weights_leave_the_gradients_as_they_are_without_activation_pruning(export_tiny: Export) -> None:
    state = read_initial_state(export_tiny())
    pruning, plain = (
        _GradientProbe(export_tiny(prune_activations=flag)).run(state, *batch())[0] for flag in (True, False)
    )
    for name, gradient in plain.items():
        np.testing.assert_array_equal(pruning[name], gradient, err_msg=name)


@NEEDS_TRAINING_API
def test_activation_pruning_changes_weight_gradients_and_nothing_else(export_tiny: Export) -> None:
    prunable = set(export_tiny().manifest.prunable)
    state = prune_global(read_initial_state(export_tiny()), sorted(prunable), 0.5)
    pruning, plain = (
        _GradientProbe(export_tiny(prune_activations=flag)).run(state, *batch())[0] for flag in (True, False)
    )
    # The gradients of BatchNorm come through the input gradients of every layer above it: they see no pruning.
    for name, gradient in plain.items():
        if name not in prunable:
            np.testing.assert_array_equal(pruning[name], gradient, err_msg=name)
    assert any(np.any(pruning[name] != plain[name]) for name in prunable)


def test_initial_outputs_do_not_depend_on_beta(export_tiny: Export) -> None:
    exports = [export_tiny(beta=beta) for beta in (1.0, 1.25)]
    logits = [evaluate(each, read_initial_state(each), *batch())[1] for each in exports]
    np.testing.assert_allclose(logits[0], logits[1], rtol=1e-4, atol=1e-5)


def test_a_device_never_keeps_more_weights_than_the_target_allows(tiny: Artifacts) -> None:
    session = first_session(tiny)
    session.train_step(*batch(), RATE)
    names = tiny.manifest.prunable
    total = sum(int(np.prod(tiny.manifest.shapes[name])) for name in names)
    for sparsity in (0.0, 0.5, 0.95, 0.999):
        kept = count_nonzero(prune_global(session.state(), names, sparsity), names)
        assert kept <= total - removed_count(total, sparsity)


def test_the_global_mask_only_shrinks_after_round_one(tiny: Artifacts) -> None:
    session = first_session(tiny)
    names = tiny.manifest.prunable
    model = session.state()
    masks = []
    for round_number in (1, 2, 3):
        updates = []
        for device in range(2):
            session.load(model)
            x, y = batch(24, seed=device)
            job = LocalJob(f"device-{device}", round_number, seed=0, epochs=1, batch_size=8, learning_rate=RATE)
            train(session, Samples(x, y), job)
            updates.append((len(x), prune_global(session.state(), names, 0.9)))
        model = average(updates)
        masks.append(np.concatenate([model[name].reshape(-1) != 0 for name in names]))
    assert np.all(masks[0] >= masks[1])
    assert np.all(masks[1] >= masks[2])
    assert masks[0].sum() > masks[2].sum() > 0
