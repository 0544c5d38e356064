"""The facts a model needs about its data, and how we show them to people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from sparsyedge.edge.data.dataset import Dataset, Samples, Task, axes_of

__all__ = ["Form", "SampleType", "describe", "form_of", "list_names"]

SampleType = Literal["uint8", "int16", "float32"]
"""How samples are stored: pixels of 0..255, sound, or numbers to use as they are."""

_MEANING: dict[SampleType, str] = {
    "uint8": "pixels of 0..255",
    "int16": "sound",
    "float32": "normalised already and used as they are",
}


@dataclass(frozen=True)
class Form:
    """Shape, type and classes of a data set, without its samples."""

    shape: tuple[int, ...]
    """Of one sample; edge/data/dataset.py names the axes."""
    classes: int
    """The number of classes; in a regression, of outputs."""
    names: tuple[str, ...] = ()
    """The names of the classes in the order of their numbers, or of the outputs; empty if they have none."""
    sample_type: SampleType = "uint8"
    task: Task = "classes"

    @property
    def outputs(self) -> int:
        """How many numbers a model gives per sample: one for each class, or for each target."""
        return self.classes


def form_of(dataset: Dataset) -> Form:
    """The form of a checked data set."""
    sample_type = cast("SampleType", dataset.train.x.dtype.name)
    return Form(tuple(dataset.train.x.shape[1:]), dataset.classes, dataset.names, sample_type, dataset.task)


def describe(form: Form, samples: Samples | None = None) -> list[str]:
    """A summary in lines of 80 columns; `samples` adds the range of numbers that nothing scales."""
    values = ""
    if samples is not None and form.sample_type == "float32":
        values = f": {samples.x.min():.3g} to {samples.x.max():.3g}"
    names = f": {list_names(form.names)}" if form.names else ", without names"
    lines = [
        f"input    {' x '.join(map(str, form.shape))} {axes_of(form.shape)}",
        f"samples  {form.sample_type}, {_MEANING[form.sample_type]}{values}",
    ]
    if form.task == "classes":
        return [*lines, f"classes  {form.classes}{names}"]
    targets = "" if samples is None else f": {samples.y.min():.3g} to {samples.y.max():.3g}"
    return [*lines, f"outputs  {form.outputs}{names}", f"targets  float32, a regression, used as they are{targets}"]


def list_names(names: Sequence[str], *, room: int = 60) -> str:
    """As many names as fit into `room` characters, then dots; at least part of one name."""
    shown: list[str] = []
    for name in names:
        if shown and len(", ".join([*shown, name])) > room:
            return ", ".join([*shown, "..."])
        shown.append(name if len(name) <= room else name[: room - 3] + "...")
    return ", ".join(shown)
