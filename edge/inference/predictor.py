"""A delivered model, ready for predictions; everything it needs is in the model file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.errors import ArtifactError
from sparsyedge.edge.inference.delivery import PROBABILITIES, VALUES
from sparsyedge.edge.inference.description import read_description
from sparsyedge.edge.model.artifacts import IMAGE_AXES
from sparsyedge.edge.tensors import FloatArray
from sparsyedge.edge.training.onnx_runtime import open_graph

__all__ = ["Predictor"]

ALL_CORES = 0
MOST_VALUES = 1 << 26
"""The most numbers in one sample: a file that claims more costs no memory."""


class Predictor:
    """One model; `description` has its task, its input format and the names of its classes or outputs."""

    sample: tuple[int, ...]
    """The shape of one sample, with channels first."""
    batch_shape: tuple[int, ...]
    """The shape of one sample in the model's own layout."""

    def __init__(self, path: Path, *, threads: int = ALL_CORES) -> None:
        self.description = read_description(path)
        self._session = open_graph(path, threads=threads)
        inputs = self._session.get_inputs()
        outputs = {each.name for each in self._session.get_outputs()}
        shape = inputs[0].shape[1:] if len(inputs) == 1 else []
        axes = len(self.description.layout) - 1
        whole = len(shape) == axes and all(isinstance(size, int) and size > 0 for size in shape)
        # Only images are stored as pixels.
        whole = whole and (axes == IMAGE_AXES or self.description.sample_type != "uint8")
        if not whole or int(np.prod(shape, dtype=object)) > MOST_VALUES or self._answer not in outputs:
            raise ArtifactError(
                f"{path} says that sparsyedge delivered it, but lacks the input and the outputs of such a model; "
                f"deliver it again"
            )
        self._input = inputs[0].name
        self.batch_shape = tuple(shape)
        self.sample = (shape[-1], *shape[:-1]) if self.description.layout == "NHWC" else tuple(shape)

    @property
    def _answer(self) -> str:
        """The output that answers."""
        return PROBABILITIES if self.description.task == "classes" else VALUES

    def probabilities(self, batch: NDArray[Any]) -> FloatArray:
        """The probability of each class for every sample of a batch in the model's own layout and type."""
        if self.description.task != "classes":
            raise ArtifactError("the model is a regression, which has no probabilities; ask for its values")
        return self.answers(batch)

    def values(self, batch: NDArray[Any]) -> FloatArray:
        """What a regression gives for every sample of a batch in its own layout and type: (batch, outputs)."""
        if self.description.task != "regression":
            raise ArtifactError("the model tells classes apart and is no regression; ask for its probabilities")
        return self.answers(batch)

    def answers(self, batch: NDArray[Any]) -> FloatArray:
        """The probabilities, or the values of a regression."""
        try:
            (found,) = self._session.run([self._answer], {self._input: batch})
        except Exception as error:  # onnxruntime's exceptions have no common base class
            raise ArtifactError(f"the model cannot take a batch of {batch.dtype} {batch.shape}: {error}") from error
        expected = (len(batch), len(self.description.names))
        if found.shape != expected or not np.isfinite(found).all():
            raise ArtifactError(
                f"the model gave {self._answer} of shape {found.shape} or not all finite, {expected} was expected; "
                f"it was altered or trained to nothing: deliver it again"
            )
        answers: FloatArray = found
        return answers
