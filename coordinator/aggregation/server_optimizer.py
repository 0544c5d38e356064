"""Turns the mean of a round's updates into the next model: one class per optimizer. Numpy only, no I/O.

Momentum carries a weight past zero, so a model that starts dense would never become sparse. We therefore zero weights
that no device kept (their mean is zero), in the next model and in the optimizer's memory, whatever the step says.
BatchNorm's running statistics are averaged, never stepped.

To add an optimizer, write a subclass of `ServerOptimizer`, list it in `OPTIMIZERS`, and add its name and its keys to
coordinator/aggregation_config.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from sparsyedge.coordinator.aggregation_config import OptimizerName, ServerOptimizerConfig
from sparsyedge.edge.errors import DamagedFileError, RunError
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.tensors import FloatArray, MadeOnDemand, State, Tensors
from sparsyedge.edge.wire.local_tensors import open_tensors, pack_tensors

__all__ = ["OPTIMIZERS", "ServerOptimizer", "make_optimizer"]


def make_optimizer(config: ServerOptimizerConfig, manifest: Manifest) -> ServerOptimizer:
    """Make the optimizer that a run asks for, with an empty memory."""
    return OPTIMIZERS[config.name](config, manifest)


class ServerOptimizer(ABC):
    """One optimizer with its memory; `pack` and `unpack` preserve the memory bit for bit across a restart."""

    slots: ClassVar[tuple[str, ...]] = ()
    """What it remembers about every trained tensor."""
    learning_rate: ClassVar[float] = 1.0
    """The default if the run sets none."""

    def __init__(self, config: ServerOptimizerConfig, manifest: Manifest) -> None:
        self._config = config
        self._rate = self.learning_rate if config.learning_rate is None else config.learning_rate
        self._trained = tuple(parameter.name for parameter in manifest.parameters if parameter.trainable)
        self._prunable = frozenset(manifest.prunable)
        self._shapes = manifest.shapes
        self._memory: dict[str, State] = {slot: {} for slot in self.slots}

    def step(self, base: Tensors, mean: Tensors) -> Tensors:
        """Return the next model, given the round's base."""
        moved = {name: self._step_tensor(name, base[name], mean[name]) for name in self._trained}
        return MadeOnDemand(mean, lambda name: moved[name] if name in moved else mean[name])

    @abstractmethod
    def direction(self, name: str, change: FloatArray) -> FloatArray:
        """Return the step for the devices' mean change, before the learning rate scales it."""

    def _step_tensor(self, name: str, base: FloatArray, mean: FloatArray) -> FloatArray:
        moved = base + np.float32(self._rate) * self.direction(name, mean - base)
        if name in self._prunable:
            gone = mean == 0
            moved[gone] = 0.0
            for memory in self._memory.values():
                memory[name][gone] = 0.0
        return moved

    def _recall(self, slot: str, name: str) -> FloatArray:
        held = self._memory[slot].get(name)
        return np.zeros(self._shapes[name], dtype=np.float32) if held is None else held

    def _remember(self, slot: str, name: str, value: FloatArray) -> FloatArray:
        self._memory[slot][name] = value
        return value

    # ---- over restarts -----------------------------------------------------------------------------------------------

    def pack(self) -> bytes:
        """Pack the memory for a file; empty if there is none."""
        state = {f"{slot}/{name}": tensor for slot, held in self._memory.items() for name, tensor in held.items()}
        return pack_tensors(state) if state else b""

    def unpack(self, packed: bytes) -> None:
        """Restore a packed memory; raises RunError if it is not this optimizer's."""
        self._memory = {slot: {} for slot in self.slots}
        if not packed:
            return
        shapes = {f"{slot}/{name}": self._shapes[name] for slot in self._memory for name in self._trained}
        try:
            state = dict(open_tensors(packed).tensors(shapes))
        except DamagedFileError as error:
            raise RunError(f"the memory of server optimizer {self._config.name} cannot be read: {error}") from error
        for slot in self._memory:
            self._memory[slot] = {name: state[f"{slot}/{name}"] for name in self._trained}


class FedAvg(ServerOptimizer):
    """Plain averaging."""

    def step(self, base: Tensors, mean: Tensors) -> Tensors:
        """Return the mean itself at a rate of 1: base + (mean - base) would round."""
        return mean if self._rate == 1.0 else super().step(base, mean)

    def direction(self, name: str, change: FloatArray) -> FloatArray:
        return change


class FedAvgM(ServerOptimizer):
    """Averaging with momentum."""

    slots = ("momentum",)

    def direction(self, name: str, change: FloatArray) -> FloatArray:
        momentum = np.float32(self._config.momentum) * self._recall("momentum", name) + change
        return self._remember("momentum", name, momentum)


class FedAdam(ServerOptimizer):
    """Adam over the devices' mean change."""

    slots = ("momentum", "variance")
    learning_rate = 0.01

    def direction(self, name: str, change: FloatArray) -> FloatArray:
        first, second = np.float32(self._config.momentum), np.float32(self._config.second_momentum)
        momentum = first * self._recall("momentum", name) + (np.float32(1) - first) * change
        variance: FloatArray = second * self._recall("variance", name) + (np.float32(1) - second) * (change * change)
        self._remember("momentum", name, momentum)
        self._remember("variance", name, variance)
        root: FloatArray = np.sqrt(variance, dtype=np.float32)
        step: FloatArray = momentum / (root + np.float32(self._config.tau))
        return step


OPTIMIZERS: dict[OptimizerName, type[ServerOptimizer]] = {"fedavg": FedAvg, "fedavgm": FedAvgM, "fedadam": FedAdam}
