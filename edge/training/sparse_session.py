"""Training over the non-zero weights alone: a plain session of any onnxruntime, stock or not.

The mask is fixed between two calls of `load`: with most methods a zero weight has no gradient. So each layer's weights
are a vector of its non-zeros, and we build the kernels' index of them (the plan) once per load. Time and memory of a
step grow with the non-zeros, not with the size of the model.

If zeros may grow back, the vector holds all weights of the layer, and the same graph trains the model densely. That is
how a device without onnxruntime-training trains such a method.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.data.dataset import Labels
from sparsyedge.edge.errors import ArtifactError, TrainingError
from sparsyedge.edge.model.artifacts import Artifacts, Parameter
from sparsyedge.edge.model.reparametrise import layer_exponents, positions_name
from sparsyedge.edge.model.training import OPTIMIZER_STEPS
from sparsyedge.edge.tensors import FloatArray, State
from sparsyedge.edge.training.augment import Mixed
from sparsyedge.edge.training.bound_step import BoundStep
from sparsyedge.edge.training.job_inputs import LABEL_SHIFT, NO_INPUTS, THRESHOLD_OF_ALL, JobInputs
from sparsyedge.edge.training.layer_paths import BREAK_EVEN, computes_sparse
from sparsyedge.edge.training.onnx_runtime import open_graph
from sparsyedge.edge.training.places import Places
from sparsyedge.edge.training.session import Kind
from sparsyedge.edge.wire.native_codec import MAGNITUDE, count_nonzero
from sparsyedge.edge.wire.sparse_tensor import bits_of, nonzero_entries

__all__ = ["LABELS_MIXED", "MIX", "SEED", "THRESHOLD", "SparseSession"]

log = logging.getLogger(__name__)

LABELS_MIXED = "labels_mixed"
"""The labels of what samples are mixed with, if the graph mixes."""
MIX = "mix"
"""The share of a sample's own label, if the graph mixes."""

THRESHOLD = ".tau"
"""Suffix of a threshold that each step passes to the next; the prefix is the name of the layer's weight."""
SEED = "seed"
"""The input that dropout draws from; a graph without dropout has none."""
SPARSE = ".sparse"
"""Suffix of the input that says whether a layer computes with its non-zeros alone."""
NO_THRESHOLD = np.array([-1], dtype=np.float32)


class SparseSession:
    """The exported model with its trainable weights, ready to take training steps once a state is loaded."""

    kind: Kind = "sparse"

    def __init__(self, artifacts: Artifacts, *, threads: int = 1) -> None:
        manifest = artifacts.manifest
        self._manifest = manifest
        self._artifacts = artifacts
        self._threads = threads
        # Its runs are few and large, so it keeps no memory between them.
        self._plan = open_graph(artifacts.path("sparse_plan"), threads=1, arena=False)
        self._open_step()
        self._outputs = [output.name for output in self._step.get_outputs()]
        self._prunable = manifest.prunable
        inputs = {each.name for each in self._step.get_inputs()}
        self._thresholds = sorted(name for name in inputs if name.endswith(THRESHOLD))
        self._mixes = MIX in inputs
        self._draws = SEED in inputs
        self._shifts = LABEL_SHIFT in inputs
        self._may_keep = THRESHOLD_OF_ALL in inputs
        self._choosing = [name for name in manifest.prunable if f"{name}{SPARSE}" in inputs]
        self._memory = [
            (parameter, suffix)
            for parameter in manifest.parameters
            for suffix in manifest.training.state_suffixes
            if parameter.trainable
        ]
        # Only the ops that make theta read values, and only the last op of a layer its memory: all before the update.
        self._in_place = {
            f"{name}.values{suffix}" for name in manifest.prunable for suffix in ("", *manifest.training.state_suffixes)
        }
        self._fixed: dict[str, NDArray[Any]] = {}
        self._changing: dict[str, NDArray[Any]] = {}
        self._positions: dict[str, Places] = {}

    def _open_step(self) -> None:
        self._step = open_graph(self._artifacts.path("sparse_step"), threads=self._threads)
        self._bound: BoundStep | None = BoundStep(self._step)

    def rest(self) -> None:
        """Close the graph, which holds the memory of a step; the model and its plans stay."""
        self._bound = self._step = None

    def load(self, state: Mapping[str, FloatArray]) -> None:
        """Load a state; if the method keeps zeros at zero, its zeros become the mask. The optimizer forgets all."""
        if self._bound is None:
            self._open_step()
        self._fixed |= layer_exponents(self._manifest.method, state, self._prunable)
        self._changing = {
            # A copy: steps overwrite it.
            name: np.array(value, dtype=np.float32, order="C")
            for name, value in state.items()
            if name not in self._prunable
        }
        self._changing |= {name: NO_THRESHOLD.copy() for name in self._thresholds}
        for name in self._prunable:
            self._changing[f"{name}.values"] = self._values(name, state[name])
        self._choose_paths()
        for parameter, suffix in self._memory:
            trained = _trained(parameter)
            self._changing[f"{trained}{suffix}"] = np.zeros_like(self._changing[trained])
        if self._manifest.training.counts_steps:
            self._changing[OPTIMIZER_STEPS] = np.zeros(1, dtype=np.float32)

    def _values(self, name: str, weights: FloatArray) -> FloatArray:
        """The weights to train of a layer, in the order of its plan, which stays as it is while the mask does."""
        places = self._positions.get(name)
        if places is not None:
            values = places.take(weights)
            if not self._manifest.method.zero_grad_at_zero or _are_nonzeros(values, weights):
                return values
        return self._plan_layer(name, weights).take(weights)

    def _choose_paths(self) -> None:
        """Decide for each layer that can do both whether it computes with its non-zeros alone."""
        if not self._choosing:
            return
        sizes = {name: math.prod(shape) for name, shape in self._manifest.shapes.items()}
        chosen = {name: computes_sparse(self._positions[name].size, sizes[name]) for name in self._choosing}
        self._fixed |= {f"{name}{SPARSE}": np.array([is_sparse]) for name, is_sparse in chosen.items()}
        log.info(
            "%d of %d layers compute with their non-zeros alone: those with at most %.0f %% of their weights",
            sum(chosen.values()),
            len(chosen),
            100 * BREAK_EVEN,
        )

    def _plan_layer(self, name: str, weights: FloatArray) -> Places:
        """Decide which weights of a layer to train, and in what order to store them."""
        method = self._manifest.method
        # Before the new ones are made: of an unpruned layer they take more than its weights.
        self._fixed.pop(f"{name}.plan", None)
        self._positions.pop(name, None)
        if method.zero_grad_at_zero:
            index = nonzero_entries(weights).positions.view(np.int32)
        else:
            index = np.arange(weights.size, dtype=np.int32)
        self._fixed[f"{name}.plan"], order = self._make_plan(name, index)
        positions = index[order]
        if method.reparametrisation == "spectral":
            self._fixed[positions_name(name)] = positions
        places = self._positions[name] = Places(positions)
        return places

    def _make_plan(self, name: str, index: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """A layer's plan and the order of its values; one layer at a time, because all at once take much memory."""
        none = np.empty(0, dtype=np.int32)
        indices = {f"{each}.index": index if each == name else none for each in self._manifest.prunable}
        try:
            plan, order = self._plan.run([f"{name}.plan", f"{name}.order"], indices)
        except Exception as error:  # onnxruntime's exceptions have no common base class
            raise ArtifactError(f"the sparse graph cannot load layer {name}: {error}") from error
        return plan, order

    def state(self) -> State:
        """A copy of every parameter and running statistic, zeros included."""
        return {
            parameter.name: self._by_position(parameter, _trained(parameter)) for parameter in self._manifest.parameters
        }

    def _by_position(self, parameter: Parameter, tensor: str) -> FloatArray:
        """A copy of one of the graph's tensors in the shape of its parameter, zeros included."""
        if not parameter.prunable:
            return self._changing[tensor].copy()
        dense = np.zeros(math.prod(parameter.shape), dtype=np.float32)
        self._positions[parameter.name].put(self._changing[tensor], dense)
        return dense.reshape(parameter.shape)

    def optimizer_state(self) -> State:
        """A copy of the optimizer's memory by position, zeros included; empty for plain SGD."""
        state: State = {}
        for parameter, suffix in self._memory:
            state[f"{parameter.name}{suffix}"] = self._by_position(parameter, f"{_trained(parameter)}{suffix}")
        if self._manifest.training.counts_steps:
            state[OPTIMIZER_STEPS] = self._changing[OPTIMIZER_STEPS].copy()
        return state

    def load_optimizer_state(self, state: Mapping[str, FloatArray]) -> None:
        """Give the optimizer a memory from `optimizer_state`; what the mask leaves out is dropped."""
        for parameter, suffix in self._memory:
            value = state[f"{parameter.name}{suffix}"]
            if parameter.prunable:
                value = self._positions[parameter.name].take(value)
            self._changing[f"{_trained(parameter)}{suffix}"] = np.array(value, dtype=np.float32, order="C")
        if self._manifest.training.counts_steps:
            self._changing[OPTIMIZER_STEPS] = np.array(state[OPTIMIZER_STEPS], dtype=np.float32)

    def train_step(
        self,
        x: FloatArray,
        y: Labels,
        learning_rate: float,
        mixed: Mixed | None = None,
        seed: int = 0,
        inputs: JobInputs = NO_INPUTS,
    ) -> float:
        """One step on one batch, BatchNorm's running statistics included; returns the loss before the step."""
        assert self._bound is not None, "load a model first"
        if inputs.keeps_inputs:
            for name in self._thresholds:
                # A threshold of zero keeps everything, and hands itself on to the next step.
                self._changing[name].fill(0.0)
        fixed = self._inputs_of_step(x, y, learning_rate, mixed, seed, inputs) | self._fixed
        try:
            return self._bound.run(fixed, self._changing, in_place=self._in_place)
        except Exception as error:  # onnxruntime's exceptions have no common base class
            raise TrainingError(f"training step on a batch of shape {x.shape} failed: {error}") from error

    def feeds(
        self,
        x: FloatArray,
        y: Labels,
        learning_rate: float,
        mixed: Mixed | None = None,
        seed: int = 0,
        inputs: JobInputs = NO_INPUTS,
    ) -> dict[str, NDArray[Any]]:
        """All inputs of the step's graph, by name; copies nothing."""
        kept = dict.fromkeys(self._thresholds, _one(0.0)) if inputs.keeps_inputs else {}
        step = self._inputs_of_step(x, y, learning_rate, mixed, seed, inputs)
        return {**step, **self._fixed, **self._changing, **kept}

    def _inputs_of_step(
        self, x: FloatArray, y: Labels, learning_rate: float, mixed: Mixed | None, seed: int, inputs: JobInputs
    ) -> dict[str, NDArray[Any]]:
        """What differs from step to step, or from job to job."""
        feeds: dict[str, NDArray[Any]] = {"x": x, "labels": y, "learning_rate": _one(learning_rate)}
        if self._mixes:
            feeds[LABELS_MIXED] = y if mixed is None else mixed.labels
            feeds[MIX] = _one(1.0 if mixed is None else mixed.share)
        if self._draws:
            feeds[SEED] = np.array([seed], dtype=np.int64)
        if self._shifts:
            none = np.zeros(self._manifest.classes, dtype=np.float32)
            feeds[LABEL_SHIFT] = none if inputs.label_shift is None else inputs.label_shift
        if self._may_keep:
            feeds[THRESHOLD_OF_ALL] = _one(0.0) if inputs.keeps_inputs else NO_THRESHOLD
        return feeds


def _trained(parameter: Parameter) -> str:
    """The graph's name for what a step trains: a prunable weight's values, or the parameter itself."""
    return f"{parameter.name}.values" if parameter.prunable else parameter.name


def _are_nonzeros(values: FloatArray, weights: FloatArray) -> bool:
    """Whether the values, some of the weights, are those that are not zero."""
    return bool(values.all()) and count_nonzero(bits_of(weights), MAGNITUDE) == values.size


def _one(value: float) -> NDArray[np.float32]:
    return np.array([value], dtype=np.float32)
