"""Training over all weights, through onnxruntime-training's own API: for round 1, and if zeros may grow back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sparsyedge.edge.data.dataset import Labels
from sparsyedge.edge.errors import ArtifactError, TrainingError
from sparsyedge.edge.model.artifacts import Artifacts, BatchNorm
from sparsyedge.edge.model.reparametrise import layer_exponents
from sparsyedge.edge.tensors import FloatArray, State
from sparsyedge.edge.training import onnx_runtime
from sparsyedge.edge.training.augment import Mixed
from sparsyedge.edge.training.job_inputs import NO_INPUTS, JobInputs
from sparsyedge.edge.training.session import Kind

__all__ = ["DenseSession"]


class DenseSession:
    """The exported model with all its parameters, ready to take SGD steps; starts from the checkpoint's parameters."""

    kind: Kind = "dense"

    def __init__(self, artifacts: Artifacts, *, threads: int = 1) -> None:
        if onnx_runtime.training_api is None:
            raise ArtifactError(
                f"{onnx_runtime.RUNTIME} on this machine has no training API; "
                f"install onnxruntime-training 1.19.2 (x86-64 Linux, Python 3.11)"
            )
        if not artifacts.manifest.has_api_files:
            raise ArtifactError(
                f"the artifacts in {artifacts.directory} were exported without onnxruntime-training, so they hold no "
                f"graph for its API; train the plain graph, or export again with Python 3.11 on x86-64 Linux"
            )
        self._manifest = artifacts.manifest
        self._artifacts = artifacts
        self._threads = threads
        self._open()

    def _open(self) -> None:
        """Open the graphs, with the checkpoint's parameters."""
        artifacts, training_api = self._artifacts, onnx_runtime.training_api
        options = onnx_runtime.session_options(self._threads)
        try:
            self._checkpoint = training_api.CheckpointState.load_checkpoint(str(artifacts.path("checkpoint")))
            self._module = training_api.Module(
                str(artifacts.path("training")), self._checkpoint, str(artifacts.path("eval")), session_options=options
            )
            self._optimizer = training_api.Optimizer(str(artifacts.path("optimizer")), self._module)
        except RuntimeError as error:
            raise ArtifactError(
                f"{onnx_runtime.RUNTIME} cannot load the artifacts in {artifacts.directory}: {error}"
            ) from error
        outputs = self._module.output_names()
        self._statistics = {
            norm.mean: (outputs.index(norm.mean_output), outputs.index(norm.variance_output))
            for norm in self._manifest.batch_norms
        }

    def rest(self) -> None:
        """Close the graphs, which hold gradients and the memory of a step; the checkpoint keeps the model."""
        self._optimizer = self._module = None

    def load(self, state: Mapping[str, FloatArray]) -> None:
        """Replace every parameter and running statistic."""
        if self._module is None:
            self._open()
        parameters = self._checkpoint.parameters
        for parameter in self._manifest.parameters:
            value = np.ascontiguousarray(state[parameter.name], dtype=np.float32)
            parameters[parameter.name].data = value
        for name, exponent in layer_exponents(self._manifest.method, state, self._manifest.prunable).items():
            parameters[name].data = exponent

    def state(self) -> State:
        """A copy of every parameter and running statistic."""
        parameters = self._checkpoint.parameters
        return {
            parameter.name: np.array(parameters[parameter.name].data, dtype=np.float32).reshape(parameter.shape)
            for parameter in self._manifest.parameters
        }

    def optimizer_state(self) -> State:
        """Nothing: plain SGD has no memory."""
        return {}

    def load_optimizer_state(self, state: Mapping[str, FloatArray]) -> None:
        """Do nothing."""

    def train_step(
        self,
        x: FloatArray,
        y: Labels,
        learning_rate: float,
        mixed: Mixed | None = None,
        seed: int = 0,
        inputs: JobInputs = NO_INPUTS,
    ) -> float:
        """One step of SGD on one batch, BatchNorm's running statistics included; returns the loss before the step."""
        assert mixed is None, "the training API's graphs have plain labels; see choose_kind"
        assert inputs.label_shift is None, "the training API's graphs have the plain loss"
        assert not inputs.keeps_inputs, "the training API's graphs prune in every round"
        self._optimizer.set_learning_rate(learning_rate)
        self._module.train()
        try:
            outputs = self._module(x, y)
            self._optimizer.step()
        except RuntimeError as error:
            raise TrainingError(f"training step on a batch of shape {x.shape} failed: {error}") from error
        self._module.lazy_reset_grad()
        for norm in self._manifest.batch_norms:
            mean_at, variance_at = self._statistics[norm.mean]
            self._write_statistics(norm, outputs[mean_at], outputs[variance_at], batch=len(x))
        return float(outputs[0])

    def evaluate(self, x: FloatArray, y: Labels) -> tuple[float, FloatArray]:
        """The mean loss over the batch and the logits, with the running statistics; changes nothing."""
        self._module.eval()
        try:
            loss, logits = self._module(x, y)
        except RuntimeError as error:
            raise TrainingError(f"evaluation of a batch of shape {x.shape} failed: {error}") from error
        finally:
            self._module.train()
        return float(loss), np.asarray(logits, dtype=np.float32)

    def _write_statistics(self, norm: BatchNorm, mean: FloatArray, variance: FloatArray, *, batch: int) -> None:
        """Store new running statistics: the training API computes them but does not update the parameters.

        The graph averages in the batch's biased variance; torch uses the unbiased one, which is n/(n-1) times that.
        """
        parameters = self._checkpoint.parameters
        count = batch * norm.plane
        if count > 1:
            old = self._manifest.batch_norm_momentum * parameters[norm.variance].data
            variance = old + (variance - old) * np.float32(count / (count - 1))
        parameters[norm.mean].data = np.asarray(mean, dtype=np.float32)
        parameters[norm.variance].data = np.asarray(variance, dtype=np.float32)
