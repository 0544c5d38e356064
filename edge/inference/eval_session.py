"""Evaluation: the delivered network with its running statistics, as a plain graph that any onnxruntime runs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sparsyedge.edge.data.dataset import Labels
from sparsyedge.edge.errors import TrainingError
from sparsyedge.edge.inference.delivery import pieces_of
from sparsyedge.edge.inference.losses import mean_loss
from sparsyedge.edge.inference.onnx_format import FLOAT, Graph, value_info
from sparsyedge.edge.inference.preprocessing import BATCH
from sparsyedge.edge.inference.protobuf import bytes_field
from sparsyedge.edge.inference.template import Template, read_template
from sparsyedge.edge.model.artifacts import Artifacts, Manifest
from sparsyedge.edge.model.reparametrise import network_weights
from sparsyedge.edge.tensors import FloatArray, State
from sparsyedge.edge.training.onnx_runtime import open_graph

__all__ = ["EvalSession", "Lent"]


class Lent(dict[str, FloatArray]):
    """A state that an evaluation may overwrite: its owner reads it again afterwards."""


class EvalSession:
    """The inference graph with its weights as inputs, ready for evaluation once a state is loaded."""

    def __init__(self, artifacts: Artifacts, *, threads: int = 1) -> None:
        template = read_template(artifacts)
        self._input, self._logits = template.input, template.logits
        self._manifest = artifacts.manifest
        # No arena: evaluations are rare, and the memory has other uses in between.
        self._graph = open_graph(
            artifacts.path(artifacts.manifest.template_role),
            threads=threads,
            arena=False,
            content=_fed_with_weights(template, artifacts.manifest),
        )
        self._weights: State = {}

    def load(self, state: Mapping[str, FloatArray]) -> None:
        """Evaluate this state from now on; holds a copy of its prunable weights until `unload`.

        A state that is `Lent` is overwritten instead.
        """
        method, prunable = self._manifest.method, self._manifest.prunable
        weights = {}
        for name in self._manifest.shapes:
            own = state[name]
            found = np.ascontiguousarray(network_weights(method, name, own, prunable=prunable), np.float32)
            if isinstance(state, Lent) and found is not own:
                own[...] = found
                found = own
            weights[name] = found
        self._weights = weights

    def unload(self) -> None:
        """Let go of the state."""
        self._weights = {}

    def evaluate(self, x: FloatArray, y: Labels) -> tuple[float, FloatArray]:
        """The mean loss over the batch and the logits; changes nothing."""
        try:
            (logits,) = self._graph.run([self._logits], {self._input: x, **self._weights})
        except Exception as error:  # onnxruntime's exceptions have no common base class
            raise TrainingError(f"evaluation of a batch of shape {x.shape} failed: {error}") from error
        return mean_loss(self._manifest.task, logits, y), logits


def _fed_with_weights(template: Template, manifest: Manifest) -> bytes:
    """The graph with the state's tensors as inputs: a session over it holds no weights of its own."""
    inputs: dict[str, tuple[int | str, ...]] = {template.input: (BATCH, *manifest.input_shape), **manifest.shapes}
    graph = dict(template.graph_fields) | {
        Graph.INPUT: b"".join(
            bytes_field(Graph.INPUT, value_info(name, shape, FLOAT)) for name, shape in inputs.items()
        ),
        Graph.OUTPUT: bytes_field(Graph.OUTPUT, value_info(template.logits, (BATCH, manifest.classes), FLOAT)),
    }
    return b"".join(pieces_of(dict(template.model_fields), graph, ()))
