"""Evaluation: the model with its running statistics, as a plain graph that any onnxruntime runs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sparsyedge.edge.data.dataset import Labels
from sparsyedge.edge.errors import TrainingError
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.reparametrise import inference_weights, layer_exponents
from sparsyedge.edge.tensors import FloatArray
from sparsyedge.edge.training.onnx_runtime import open_graph

__all__ = ["EvalSession"]


class EvalSession:
    """The exported model, ready for evaluation once a state is loaded."""

    def __init__(self, artifacts: Artifacts, *, threads: int = 1) -> None:
        # No arena: evaluations are rare, and the memory has other uses in between.
        self._graph = open_graph(artifacts.path("eval"), threads=threads, arena=False)
        self._manifest = artifacts.manifest
        # A graph need not use the whole state.
        self._wanted = {each.name for each in self._graph.get_inputs()} & set(artifacts.manifest.shapes)
        self._state: dict[str, FloatArray] = {}

    def load(self, state: Mapping[str, FloatArray]) -> None:
        """Evaluate this state from now on; does not copy it."""
        method, prunable = self._manifest.method, self._manifest.prunable
        self._state = {
            name: np.ascontiguousarray(inference_weights(method, name, state[name], prunable=prunable), np.float32)
            for name in self._wanted
        }
        self._state |= layer_exponents(method, state, prunable)

    def evaluate(self, x: FloatArray, y: Labels) -> tuple[float, FloatArray]:
        """The mean loss over the batch and the logits; changes nothing."""
        try:
            loss, logits = self._graph.run(["loss", "logits"], {"x": x, "labels": y, **self._state})
        except Exception as error:  # onnxruntime's exceptions have no common base class
            raise TrainingError(f"evaluation of a batch of shape {x.shape} failed: {error}") from error
        return float(loss), logits
