"""Training in plain torch instead of the exported graphs: a second implementation of the methods, on a GPU if any.

Everything around a step (batch orders, pruning, frames, averaging) is the devices' own, so a different result points at
the step.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from sparsyedge.edge.data.dataset import Labels
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.model.checkpoint import read_initial_state
from sparsyedge.edge.tensors import FloatArray, State, Tensors
from sparsyedge.edge.training.augment import Mixed
from sparsyedge.edge.training.job_inputs import NO_INPUTS, JobInputs
from sparsyedge.edge.training.session import Kind, Session
from sparsyedge.edge.training.session_holder import SessionHolder
from sparsyedge.export.model_spec import ModelSpec
from sparsyedge.export.models import build_model
from sparsyedge.export.reference import (
    derive_exponents,
    load_optimizer_state,
    make_optimizer,
    optimizer_state,
    reference_step,
)

__all__ = ["TorchSession", "TorchWorkbench"]


class TorchSession:
    """A manifest's model in torch; trains all weights, and zeros grow back if the method allows it."""

    kind: Kind = "dense"

    def __init__(self, manifest: Manifest, *, threads: int = 1) -> None:
        torch.set_num_threads(threads)
        self._manifest = manifest
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        spec = ModelSpec(manifest.model, manifest.width, manifest.classes, manifest.input_shape)
        self._model = build_model(spec, beta=manifest.method.beta, seed=manifest.seed).to(self._device)
        self._optimizer = make_optimizer(self._model, manifest.method, manifest.training)
        self._exponents: Mapping[str, float] = {}
        self._thresholds: dict[str, float] = {}

    def load(self, state: Mapping[str, FloatArray]) -> None:
        """Replace every parameter and running statistic; the optimizer forgets everything."""
        # Our states lack torch's batch counter; nothing here reads it.
        tensors = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in state.items()}
        self._model.load_state_dict(tensors, strict=False)
        self._exponents = derive_exponents(self._model, self._manifest.method, self._manifest.prunable)
        self._thresholds = {}
        self._optimizer = make_optimizer(self._model, self._manifest.method, self._manifest.training)

    def state(self) -> State:
        """A copy of every parameter and running statistic."""
        found = self._model.state_dict()
        return {name: found[name].detach().cpu().numpy().copy() for name in self._manifest.shapes}

    def optimizer_state(self) -> State:
        """A copy of the optimizer's memory."""
        return optimizer_state(self._model, self._manifest.training, self._optimizer)

    def load_optimizer_state(self, state: Mapping[str, FloatArray]) -> None:
        """Give the optimizer a memory; what the mask leaves out is dropped."""
        kept = dict(state)
        if self._manifest.method.zero_grad_at_zero:
            for name, weights in self.state().items():
                for suffix in self._manifest.training.state_suffixes if name in self._manifest.prunable else ():
                    kept[f"{name}{suffix}"] = np.where(weights == 0, np.float32(0), state[f"{name}{suffix}"])
        load_optimizer_state(self._model, self._manifest.training, self._optimizer, kept)

    def rest(self) -> None:
        """Do nothing: simulated devices share the session."""

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
        step = reference_step(
            self._model,
            self._manifest.method,
            torch.from_numpy(x).to(self._device),
            torch.from_numpy(y).to(self._device),
            learning_rate=learning_rate,
            exponents=self._exponents,
            thresholds=self._thresholds,
            training=self._manifest.training,
            optimizer=self._optimizer,
            mixed=mixed,
            inputs=inputs,
        )
        return step.loss


class TorchWorkbench(SessionHolder):
    """A holder of torch sessions; the artifacts give the model, the method and the initial weights."""

    def session(self, model: Tensors | None, *, round_number: int) -> Session:
        artifacts = self._artifacts
        assert artifacts is not None, "put artifacts here first"
        if not isinstance(self._session, TorchSession):
            self._session = TorchSession(artifacts.manifest, threads=self._threads)
        self._session.load(read_initial_state(artifacts) if model is None else model)
        return self._session
