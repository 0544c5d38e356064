"""The interface of a training session, and the rule that picks its kind for a round and runtime."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, Protocol

from sparsyedge.edge.data.dataset import Labels
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.tensors import FloatArray, State
from sparsyedge.edge.training.augment import Mixed
from sparsyedge.edge.training.job_inputs import NO_INPUTS, JobInputs
from sparsyedge.edge.wire.native_codec import MAGNITUDE, count_nonzero
from sparsyedge.edge.wire.sparse_tensor import bits_of

__all__ = ["Kind", "Runtime", "Session", "choose_kind", "remaining_work"]

Kind = Literal["dense", "sparse"]
Runtime = Literal["training", "stock"]
"""onnxruntime-training with its API, or any stock onnxruntime."""

SPARSE_WORK_LIMIT = 0.9
"""The sparse graph is faster up to this share of the dense model's multiplications."""


class Session(Protocol):
    """A model with its parameters, ready to take training steps."""

    kind: Kind

    def load(self, state: Mapping[str, FloatArray]) -> None:
        """Replace every parameter and running statistic; the optimizer forgets everything."""

    def state(self) -> State:
        """A copy of every parameter and running statistic."""

    def optimizer_state(self) -> State:
        """A copy of the optimizer's memory by position, zeros included; empty for plain SGD."""

    def load_optimizer_state(self, state: Mapping[str, FloatArray]) -> None:
        """Give the optimizer a memory from `optimizer_state`; what the mask leaves out is dropped."""

    def rest(self) -> None:
        """Give back the memory that steps need and keep the model; after `load` there may be steps again."""

    def train_step(
        self,
        x: FloatArray,
        y: Labels,
        learning_rate: float,
        mixed: Mixed | None = None,
        seed: int = 0,
        inputs: JobInputs = NO_INPUTS,
    ) -> float:
        """One step on one batch, BatchNorm's running statistics included; returns the loss before the step.

        Dropout draws from `seed`. `inputs` is the same in all steps of a job.
        """


def choose_kind(manifest: Manifest, state: Mapping[str, FloatArray], runtime: Runtime) -> Kind:
    """Picks sparse if the method keeps zeros at zero and enough of the model's work is gone, else dense.

    Round 1 starts from dense weights, so it trains dense, unless the method starts sparse. Without a training API, or
    files for it, there is no choice: the sparse graph trains dense models as well. So it is for everything but plain
    SGD, the only step that the API's graphs know.
    """
    if runtime == "stock" or not manifest.has_api_files or manifest.method.activation_threshold == "round":
        # The training API cannot keep a threshold between two steps.
        return "sparse"
    if not manifest.method.zero_grad_at_zero:
        return "dense"
    return "sparse" if remaining_work(manifest, state) <= SPARSE_WORK_LIMIT else "dense"


def remaining_work(manifest: Manifest, state: Mapping[str, FloatArray]) -> float:
    """The share of the dense model's multiplications that the non-zero weights still need, over all layers."""
    dense = left = 0
    for parameter in manifest.parameters:
        if parameter.prunable:
            dense += parameter.positions * math.prod(parameter.shape)
            left += parameter.positions * count_nonzero(bits_of(state[parameter.name]), MAGNITUDE)
    return left / dense if dense else 1.0
