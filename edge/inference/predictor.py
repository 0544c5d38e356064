"""A delivered model, ready for predictions; everything it needs is in the model file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.errors import ArtifactError
from sparsyedge.edge.inference.delivery import PROBABILITIES
from sparsyedge.edge.inference.description import read_description
from sparsyedge.edge.tensors import FloatArray
from sparsyedge.edge.training.onnx_runtime import open_graph

__all__ = ["Predictor"]

ALL_CORES = 0
MOST_VALUES = 1 << 26
"""The most numbers in one sample: a file that claims more costs no memory."""


class Predictor:
    """One model; `description` has its input format and class names."""

    sample: tuple[int, int, int]
    """Channels, height and width of its input."""

    def __init__(self, path: Path) -> None:
        self.description = read_description(path)
        self._session = open_graph(path, threads=ALL_CORES)
        inputs = self._session.get_inputs()
        outputs = {each.name for each in self._session.get_outputs()}
        shape = inputs[0].shape[1:] if len(inputs) == 1 else []
        whole = len(shape) == 3 and all(isinstance(size, int) and size > 0 for size in shape)
        if not whole or int(np.prod(shape, dtype=object)) > MOST_VALUES or PROBABILITIES not in outputs:
            raise ArtifactError(
                f"{path} says that sparsyedge delivered it, but lacks the input and the outputs of such a model; "
                f"deliver it again"
            )
        self._input = inputs[0].name
        height, width, channels = shape if self.description.layout == "NHWC" else (*shape[1:], shape[0])
        self.sample = (channels, height, width)

    def probabilities(self, batch: NDArray[Any]) -> FloatArray:
        """The probability of each class for every sample of a batch in the model's own layout and type."""
        try:
            (found,) = self._session.run([PROBABILITIES], {self._input: batch})
        except Exception as error:  # onnxruntime's exceptions have no common base class
            raise ArtifactError(f"the model cannot take a batch of {batch.dtype} {batch.shape}: {error}") from error
        expected = (len(batch), len(self.description.class_names))
        if found.shape != expected or not np.isfinite(found).all():
            raise ArtifactError(
                f"the model gave probabilities of shape {found.shape} or not all finite, {expected} was expected; "
                f"it was altered or trained to nothing: deliver it again"
            )
        probabilities: FloatArray = found
        return probabilities
