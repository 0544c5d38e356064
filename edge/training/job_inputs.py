"""What a step is told of its whole job: the shift of the logits by the device's classes, and whether inputs stay whole.

A step graph has an input for each, if its export asks for it; old graphs have neither.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsyedge.edge.data.dataset import Labels
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.tensors import FloatArray

__all__ = ["LABEL_SHIFT", "NO_INPUTS", "THRESHOLD_OF_ALL", "JobInputs", "inputs_of", "label_shift"]

LABEL_SHIFT = "label_shift"
"""The graph's input that is added to the logits of every sample; a number per class."""
THRESHOLD_OF_ALL = "input_threshold"
"""The graph's input that says which inputs of layers feed gradients: 0 keeps all, a negative one prunes as usual."""


@dataclass(frozen=True, eq=False)
class JobInputs:
    """The same for all steps of a job."""

    label_shift: FloatArray | None = None
    """What is added to the logits, per class; None adds nothing."""
    keeps_inputs: bool = False
    """Whether the gradients of weights see all of a layer's input, though the method prunes it later in the run."""


NO_INPUTS = JobInputs()


def inputs_of(manifest: Manifest, labels: Labels, round_number: int) -> JobInputs:
    """What the steps of a round are told on a device with these labels."""
    tau = manifest.training.label_shift
    return JobInputs(
        label_shift=label_shift(labels, manifest.classes, tau) if tau else None,
        keeps_inputs=manifest.method.keeps_inputs(round_number),
    )


def label_shift(labels: Labels, classes: int, tau: float) -> FloatArray:
    """tau * log of every class's frequency among the labels, relative to that of the most frequent one.

    Each class counts as if the device had one more sample of it, so the shift of a class that it lacks is finite: all
    that n samples say of such a class is that its share is about 1/n or less. A softmax sees differences alone, so the
    most frequent class may have a shift of zero, and a device whose classes are even trains without any, bit by bit.
    """
    counts = np.bincount(labels, minlength=classes) + 1.0
    shift: FloatArray = (tau * np.log(counts / counts.max())).astype(np.float32)
    return shift
