"""From the mean of a round's updates to the next model: FedAvg, FedAvgM, FedAdam. Numpy only, no I/O.

An optimizer other than plain averaging does not land on zero where devices have pruned a weight: momentum carries the
weight past it, and from dense initial weights the model would never become sparse. So weights that no device has kept
(the mean is zero there) are zero in the next model and in the optimizer's memory of them, whatever its step says.
BatchNorm's running statistics are averaged, never stepped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
import numpy as np

from sparsyedge.edge.config import Section
from sparsyedge.edge.errors import RunError, SparsyedgeError
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.tensors import FloatArray, State
from sparsyedge.edge.wire.frame import decode_frame, frame_of

__all__ = ["ServerOptimizer", "ServerOptimizerConfig"]

Name = Literal["fedavg", "fedavgm", "fedadam"]
SLOTS: dict[Name, tuple[str, ...]] = {"fedavg": (), "fedavgm": ("momentum",), "fedadam": ("momentum", "variance")}
LEARNING_RATES: dict[Name, float] = {"fedavg": 1.0, "fedavgm": 1.0, "fedadam": 0.01}


class ServerOptimizerConfig(Section, frozen=True, kw_only=True):
    """From the mean of a round's updates to the next model."""

    name: Name = "fedavg"
    """Plain averaging, with momentum, or Adam."""
    learning_rate: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """How far the coordinator steps; 1 for fedavg and fedavgm, 0.01 for fedadam, where it is left out."""
    momentum: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.9
    """How much of the step before fedavgm and fedadam keep."""
    second_momentum: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.99
    """How much of its mean of squares fedadam keeps."""
    tau: Annotated[float, msgspec.Meta(gt=0)] = 1e-3
    """What fedadam adds to the root of that mean: small changes stay small."""

    @property
    def rate(self) -> float:
        return LEARNING_RATES[self.name] if self.learning_rate is None else self.learning_rate


class ServerOptimizer:
    """One optimizer with its memory, which `pack` and `unpack` carry over a restart bit for bit."""

    def __init__(self, config: ServerOptimizerConfig, manifest: Manifest) -> None:
        self._config = config
        self._trained = tuple(parameter.name for parameter in manifest.parameters if parameter.trainable)
        self._prunable = frozenset(manifest.prunable)
        self._shapes = manifest.shapes
        self._memory: dict[str, State] = {slot: {} for slot in SLOTS[config.name]}

    def step(self, base: Mapping[str, FloatArray], mean: State) -> State:
        """The next model, from the one that the round started with; `mean` is taken over, tensor by tensor."""
        if self._config.name == "fedavg" and self._config.rate == 1.0:
            return mean
        for name in self._trained:
            mean[name] = self._step_tensor(name, base[name], mean[name])
        return mean

    def _step_tensor(self, name: str, base: FloatArray, mean: FloatArray) -> FloatArray:
        change = mean - base
        config = self._config
        if config.name == "fedavg":
            step = change
        elif config.name == "fedavgm":
            step = self._remember(
                "momentum", name, np.float32(config.momentum) * self._recall("momentum", name) + change
            )
        else:
            step = self._adam(name, change)
        moved = base + np.float32(config.rate) * step
        if name in self._prunable:
            gone = mean == 0
            moved[gone] = 0.0
            for memory in self._memory.values():
                memory[name][gone] = 0.0
        return moved

    def _adam(self, name: str, change: FloatArray) -> FloatArray:
        first, second = np.float32(self._config.momentum), np.float32(self._config.second_momentum)
        momentum = first * self._recall("momentum", name) + (np.float32(1) - first) * change
        variance: FloatArray = second * self._recall("variance", name) + (np.float32(1) - second) * (change * change)
        self._remember("momentum", name, momentum)
        self._remember("variance", name, variance)
        root: FloatArray = np.sqrt(variance, dtype=np.float32)
        step: FloatArray = momentum / (root + np.float32(self._config.tau))
        return step

    def _recall(self, slot: str, name: str) -> FloatArray:
        held = self._memory[slot].get(name)
        return np.zeros(self._shapes[name], dtype=np.float32) if held is None else held

    def _remember(self, slot: str, name: str, value: FloatArray) -> FloatArray:
        self._memory[slot][name] = value
        return value

    # ---- over restarts -----------------------------------------------------------------------------------------------

    def pack(self) -> bytes:
        """The memory as bytes; empty where there is none."""
        state = {f"{slot}/{name}": tensor for slot, held in self._memory.items() for name, tensor in held.items()}
        if not state:
            return b""
        prunable = [f"{slot}/{name}" for slot in self._memory for name in self._prunable]
        return frame_of(state, run="optimizer", round_number=0, base_id="", prunable=prunable)

    def unpack(self, packed: bytes) -> None:
        """Go on with what another process has packed; raises RunError where that is not this optimizer's memory."""
        self._memory = {slot: {} for slot in SLOTS[self._config.name]}
        if not packed:
            return
        shapes = {f"{slot}/{name}": self._shapes[name] for slot in self._memory for name in self._trained}
        try:
            state = decode_frame(packed, shapes).state
        except SparsyedgeError as error:
            raise RunError(f"the memory of server optimizer {self._config.name} cannot be read: {error}") from error
        for slot in self._memory:
            self._memory[slot] = {name: state[f"{slot}/{name}"] for name in self._trained}
