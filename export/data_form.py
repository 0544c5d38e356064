"""Determines the form of the data from the data itself, the table of known data sets, or flags."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sparsyedge.edge.data import DATASETS, Form, form_of, load
from sparsyedge.edge.data.dataset import AXES
from sparsyedge.edge.data.form import SampleType, describe
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.artifacts import IMAGE_AXES

__all__ = ["understand"]

_MOST_CHANNELS = 4
"""An image has no more."""


def understand(
    dataset: str | None,
    data_dir: Path | None = None,
    *,
    input_shape: Sequence[int] | None = None,
    classes: int | None = None,
    outputs: int | None = None,
    sample_type: SampleType | None = None,
) -> tuple[Form, list[str]]:
    """The form of the data, and lines that describe it for the user; flags must not contradict the data.

    `outputs` is for a regression, and stands instead of `classes`. Data sets that come with sparsyedge need not be on
    disk. Raises ConfigError for flags that make no sense, DataError for unusable data.
    """
    if classes is not None and outputs is not None:
        raise ConfigError(
            f"--classes {classes} and --outputs {outputs} exclude each other; give --classes for classes, --outputs "
            "for a regression"
        )
    if dataset is None:
        form = _form_of_flags(input_shape, classes, outputs, sample_type)
        return form, describe(form)
    if dataset in DATASETS:
        form = DATASETS[dataset].form
        lines = describe(form)
    else:
        loaded = load(dataset, data_dir, train_only=True)
        form = form_of(loaded)
        lines = describe(form, loaded.train)
    if input_shape is not None and tuple(input_shape) != form.shape:
        raise _contradiction("input-shape", input_shape, dataset, form.shape)
    if classes is not None and (form.task, classes) != ("classes", form.classes):
        raise _contradiction("classes", [classes], dataset, _outputs_of(form))
    if outputs is not None and (form.task, outputs) != ("regression", form.outputs):
        raise _contradiction("outputs", [outputs], dataset, _outputs_of(form))
    if sample_type is not None and sample_type != form.sample_type:
        raise _contradiction("sample-type", [sample_type], dataset, [form.sample_type])
    return form, lines


def _outputs_of(form: Form) -> list[object]:
    return [form.classes] if form.task == "classes" else ["a regression with", form.outputs, "outputs"]


def _form_of_flags(
    input_shape: Sequence[int] | None, classes: int | None, outputs: int | None, sample_type: SampleType | None
) -> Form:
    if input_shape is None or (classes is None and outputs is None):
        raise ConfigError(
            f"an export needs to know the data: name it with --dataset (an .npz file, a folder of images, "
            f"{', '.join(DATASETS)}), or give both --input-shape CHANNELS HEIGHT WIDTH and --classes (or --outputs)"
        )
    if len(input_shape) not in AXES:
        raise ConfigError(
            f"--input-shape has {len(input_shape)} sizes, allowed are 1 to {max(AXES)}: "
            f"{'; '.join(axes.upper().replace(',', '') for axes in AXES.values())}"
        )
    images = len(input_shape) == IMAGE_AXES
    _check_flags(input_shape, sample_type, images=images)
    stored = sample_type or ("uint8" if images else "float32")
    if classes is not None:
        return Form(tuple(input_shape), classes, sample_type=stored)
    assert outputs is not None
    return Form(tuple(input_shape), outputs, sample_type=stored, task="regression")


def _check_flags(input_shape: Sequence[int], sample_type: SampleType | None, *, images: bool) -> None:
    """Refuse a shape that cannot be meant."""
    if sample_type == "uint8" and not images:
        raise ConfigError(
            f"--sample-type uint8 is for images, and --input-shape {' '.join(map(str, input_shape))} is no image's; "
            "give --sample-type float32, or CHANNELS HEIGHT WIDTH"
        )
    # Data other than pixels may have any number of channels.
    if images and sample_type in (None, "uint8") and input_shape[0] > _MOST_CHANNELS >= input_shape[2]:
        first, second, third = input_shape
        raise ConfigError(
            f"--input-shape {first} {second} {third} means {first} channels of {second} x {third} pixels, and "
            f"looks like height, width, channels; write --input-shape {third} {first} {second}, or add "
            "--sample-type float32 if the data is not images"
        )


def _contradiction(flag: str, given: Sequence[object], dataset: str, found: Sequence[object]) -> ConfigError:
    text, there = (" ".join(map(str, values)) for values in (given, found))
    return ConfigError(f"--{flag} {text} contradicts data set {dataset}, which has {there}; leave --{flag} out")
