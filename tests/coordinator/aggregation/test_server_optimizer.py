"""Server optimizers: how they change a model, and that they keep it sparse."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from sparsyedge.coordinator.aggregation.server_optimizer import OPTIMIZERS, ServerOptimizer, make_optimizer
from sparsyedge.coordinator.aggregation_config import OptimizerName, ServerOptimizerConfig
from sparsyedge.edge.errors import RunError
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.model.prune import prune_global
from sparsyedge.edge.tensors import State, model_id


def optimizer(manifest: Manifest, **values: object) -> ServerOptimizer:
    return make_optimizer(ServerOptimizerConfig(**values), manifest)  # type: ignore[arg-type]


def mean_of(base: State, seed: int) -> State:
    """A round's mean: near its base, half of the weights pruned."""
    rng = np.random.default_rng(seed)
    moved = {name: (tensor + 0.1 * rng.random(tensor.shape)).astype(np.float32) for name, tensor in base.items()}
    return prune_global(moved, ["fc.weight"], 0.5)


def copy(state: State) -> State:
    return {name: tensor.copy() for name, tensor in state.items()}


def test_every_name_of_the_config_has_a_class() -> None:
    assert tuple(OPTIMIZERS) == get_args(OptimizerName)


@pytest.mark.parametrize(("name", "rate"), [("fedavg", 1.0), ("fedavgm", 1.0), ("fedadam", 0.01)])
def test_an_optimizer_brings_its_own_learning_rate(
    name: OptimizerName, rate: float, manifest: Manifest, initial: State
) -> None:
    mean = mean_of(initial, 1)
    left_out, given = optimizer(manifest, name=name), optimizer(manifest, name=name, learning_rate=rate)
    assert model_id(left_out.step(initial, copy(mean))) == model_id(given.step(initial, copy(mean)))


def test_fedavg_is_the_mean_itself(manifest: Manifest, initial: State) -> None:
    mean = mean_of(initial, 1)
    assert model_id(optimizer(manifest).step(initial, copy(mean))) == model_id(mean)


def test_the_first_step_of_fedavgm_is_the_mean_and_the_next_goes_further(manifest: Manifest, initial: State) -> None:
    server = optimizer(manifest, name="fedavgm", momentum=0.5)
    first = mean_of(initial, 1)
    base = dict(server.step(initial, copy(first)))
    np.testing.assert_allclose(base["fc.bias"], first["fc.bias"], rtol=1e-6)
    second = mean_of(base, 2)
    moved = server.step(base, copy(second))
    expected = base["fc.bias"] + 0.5 * (first["fc.bias"] - initial["fc.bias"]) + (second["fc.bias"] - base["fc.bias"])
    np.testing.assert_allclose(moved["fc.bias"], expected, rtol=1e-5)


def test_fedadam_takes_steps_of_its_own_size(manifest: Manifest, initial: State) -> None:
    server = optimizer(manifest, name="fedadam", learning_rate=0.01, momentum=0.9, second_momentum=0.99, tau=1e-3)
    mean = mean_of(initial, 1)
    change = mean["fc.bias"] - initial["fc.bias"]
    moved = server.step(initial, copy(mean))
    expected = initial["fc.bias"] + 0.01 * (0.1 * change) / (np.sqrt(0.01 * change**2) + 1e-3)
    np.testing.assert_allclose(moved["fc.bias"], expected, rtol=1e-4)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_that_no_device_kept_are_zero_whatever_the_step_says(
    name: OptimizerName, manifest: Manifest, initial: State
) -> None:
    server = optimizer(manifest, name=name, learning_rate=0.7)
    base = initial
    for seed in range(4):
        mean = mean_of(base, seed)
        gone = mean["fc.weight"] == 0
        base = dict(server.step(base, copy(mean)))
        assert (base["fc.weight"][gone] == 0).all()
        assert np.count_nonzero(base["fc.weight"]) <= np.count_nonzero(~gone)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_running_statistics_are_averaged_and_never_stepped(
    name: OptimizerName, manifest: Manifest, initial: State
) -> None:
    server = optimizer(manifest, name=name, learning_rate=0.7)
    base = initial
    for seed in range(3):
        mean = mean_of(base, seed)
        base = dict(server.step(base, copy(mean)))
        assert np.array_equal(base["bn.running_var"], mean["bn.running_var"])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_restart_does_not_change_a_bit(name: OptimizerName, manifest: Manifest, initial: State) -> None:
    undisturbed, base = optimizer(manifest, name=name), initial
    restarted, other = optimizer(manifest, name=name), initial
    for seed in range(4):
        base = dict(undisturbed.step(base, mean_of(base, seed)))
        packed = restarted.pack()
        restarted = optimizer(manifest, name=name)
        restarted.unpack(packed)
        other = dict(restarted.step(other, mean_of(other, seed)))
    assert model_id(other) == model_id(base)


def test_the_memory_of_another_optimizer_is_refused(manifest: Manifest, initial: State) -> None:
    adam = optimizer(manifest, name="fedadam")
    adam.step(initial, mean_of(initial, 1))
    with pytest.raises(RunError, match="the memory of server optimizer fedavgm cannot be read"):
        optimizer(manifest, name="fedavgm").unpack(adam.pack())
