"""Determines the form of the data from the data itself, the table of known data sets, or flags."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sparsyedge.edge.data import DATASETS, Form, form_of, load
from sparsyedge.edge.data.form import SampleType, describe
from sparsyedge.edge.errors import ConfigError

__all__ = ["understand"]

_MOST_CHANNELS = 4
"""An image has no more."""


def understand(
    dataset: str | None,
    data_dir: Path | None = None,
    *,
    input_shape: Sequence[int] | None = None,
    classes: int | None = None,
    sample_type: SampleType | None = None,
) -> tuple[Form, list[str]]:
    """The form of the data, and lines that describe it for the user; flags must not contradict the data.

    Data sets that come with sparsyedge need not be on disk. Raises ConfigError for flags that make no sense, DataError
    for unusable data.
    """
    if dataset is None:
        form = _form_of_flags(input_shape, classes, sample_type)
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
    if classes is not None and classes != form.classes:
        raise _contradiction("classes", [classes], dataset, [form.classes])
    if sample_type is not None and sample_type != form.sample_type:
        raise _contradiction("sample-type", [sample_type], dataset, [form.sample_type])
    return form, lines


def _form_of_flags(input_shape: Sequence[int] | None, classes: int | None, sample_type: SampleType | None) -> Form:
    if input_shape is None or classes is None:
        raise ConfigError(
            f"an export needs to know the data: name it with --dataset (an .npz file, a folder of images, "
            f"{', '.join(DATASETS)}), or give both --input-shape CHANNELS HEIGHT WIDTH and --classes"
        )
    channels, height, width = input_shape
    # Data other than pixels may have any number of channels.
    if sample_type in (None, "uint8") and channels > _MOST_CHANNELS >= width:
        raise ConfigError(
            f"--input-shape {channels} {height} {width} means {channels} channels of {height} x {width} pixels, and "
            f"looks like height, width, channels; write --input-shape {width} {channels} {height}, or add "
            "--sample-type float32 if the data is not images"
        )
    return Form((channels, height, width), classes, sample_type=sample_type or "uint8")


def _contradiction(flag: str, given: Sequence[object], dataset: str, found: Sequence[object]) -> ConfigError:
    text, there = (" ".join(map(str, values)) for values in (given, found))
    return ConfigError(f"--{flag} {text} contradicts data set {dataset}, which has {there}; leave --{flag} out")
