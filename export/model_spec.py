"""What a model is made for: its name and size, and the form of its data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from sparsyedge.edge.data import Form, Task
from sparsyedge.edge.data.form import SampleType
from sparsyedge.edge.model.artifacts import StatedChoices
from sparsyedge.edge.storage import sha256_file

__all__ = ["AS_IT_IS", "ModelChoices", "ModelSpec", "plain_name"]


@dataclass(frozen=True)
class ModelSpec:
    """A model's name and size, and the form of its data."""

    model: str
    width: int
    classes: int
    """The number of classes; in a regression, of outputs."""
    input_shape: tuple[int, ...]
    """Of one sample: channels, height, width of an image; edge/data/dataset.py names the axes of others."""
    class_names: tuple[str, ...] = ()
    """In the order of their numbers, or of the outputs; empty if they have no names."""
    sample_type: SampleType = "uint8"
    task: Task = "classes"

    @property
    def outputs(self) -> int:
        """How many numbers the model gives per sample: one for each class, or for each target."""
        return self.classes

    @classmethod
    def for_data(cls, model: str, width: int, form: Form) -> ModelSpec:
        """The spec of a model for data of this form."""
        return cls(model, width, form.classes, form.shape, form.names, form.sample_type, form.task)


@dataclass(frozen=True)
class ModelChoices:
    """What a user decides about a model beyond its name."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    """For the callable of the user's own module."""
    init: Path | None = None
    """A file of weights to start from."""
    train: str = "all"
    """Which parameters train: `all`, `last:N` layers, or those that match a pattern."""
    prunable: str | None = None
    """Which parameters are pruned; without a pattern, the weights of convolutions and linear layers."""

    def stated(self) -> StatedChoices:
        """These choices as the manifest has them; raises OSError if the file of weights cannot be read."""
        arguments = msgspec.json.encode(dict(self.arguments), order="sorted", enc_hook=repr)
        return StatedChoices(
            hashlib.sha256(arguments).hexdigest() if self.arguments else None,
            sha256_file(self.init) if self.init is not None else None,
            self.train,
            self.prunable,
        )


AS_IT_IS = ModelChoices()


def plain_name(model: str) -> str:
    """A model's name as manifests have it: without the folders of this machine."""
    place, colon, name = model.rpartition(":")
    return f"{Path(place).name}:{name}" if colon and place.endswith(".py") else model
