"""A delivered model's description of itself: ONNX metadata under keys that begin with `sparsyedge.`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from sparsyedge.edge.data.dataset import Task
from sparsyedge.edge.data.form import SampleType
from sparsyedge.edge.errors import ArtifactError
from sparsyedge.edge.inference.onnx_format import Model, read_metadata_entry
from sparsyedge.edge.inference.preprocessing import DataType, Layout, Preprocessing
from sparsyedge.edge.inference.protobuf import Malformed, fields
from sparsyedge.edge.model.artifacts import IMAGE_AXES, ClassName, Manifest

__all__ = ["KEY_PREFIX", "Description", "Origin", "default_names", "describe", "read_description"]

KEY_PREFIX = "sparsyedge."
METADATA_VERSION = 2
"""The newest version of the keys. We write 1, which says less, for classes of samples with three axes."""
MOST_METADATA_BYTES = 16 << 20
MOST_MODEL_BYTES = 2 << 30
"""The size limit of a protobuf file."""
JSON_FIELDS = frozenset(
    {"metadata_version", "class_names", "output_names", "round", "accuracy", "rmse", "r_squared", "sparsity"}
)
"""Fields stored as JSON; all others are plain text."""
FIELDS_OF: dict[Task, frozenset[str]] = {
    "classes": frozenset({"class_names", "accuracy"}),
    "regression": frozenset({"task", "output_names", "rmse", "r_squared"}),
}
"""The keys that only models of that task have."""
Text = Annotated[str, msgspec.Meta(max_length=1000)]


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model comes from, and how well it scored in its run."""

    run: Text
    round: int
    accuracy: float | None = None
    """On the test samples of the run's data set; None for a regression, or if nobody has measured it."""
    rmse: float | None = None
    """The same for a regression: the root mean squared error; None for classes, or if it was no number."""
    r_squared: float | None = None
    """The share of the test targets' variance that a regression explains; None also if they do not vary."""
    sparsity: float
    """The share of prunable weights that are zero."""


class Description(Origin, frozen=True, kw_only=True):
    """Everything needed to use a model; every field is a key of its metadata, if it concerns the model's task."""

    metadata_version: int
    """The version of this list of keys."""
    layout: Layout
    dtype: DataType
    scaling: Text
    sample_type: SampleType
    """How the training samples were stored."""
    task: Task = "classes"
    class_names: Annotated[tuple[ClassName, ...], msgspec.Meta(min_length=1)] | None = None
    output_names: Annotated[tuple[ClassName, ...], msgspec.Meta(min_length=1)] | None = None
    method: Text

    def __post_init__(self) -> None:
        if not self.names:
            raise ValueError("its names are missing")

    @property
    def names(self) -> tuple[str, ...]:
        """What each number in an answer is called: a class, or an output of a regression."""
        return self.class_names or self.output_names or ()

    def metadata(self) -> dict[str, str]:
        """The metadata to write, in key order."""
        return {
            f"{KEY_PREFIX}{name}": msgspec.json.encode(value).decode() if name in JSON_FIELDS else str(value)
            for name, value in sorted(msgspec.structs.asdict(self).items())
            if name in _keys_of(self.task)
        }


def _keys_of(task: Task) -> frozenset[str]:
    """The metadata keys of a model, without their prefix."""
    others = (fields for other, fields in FIELDS_OF.items() if other != task)
    return frozenset(Description.__struct_fields__).difference(*others)


def describe(manifest: Manifest, preprocessing: Preprocessing, origin: Origin) -> Description:
    """The description of these artifacts' model; unnamed classes are called by their numbers."""
    if manifest.class_names and len(manifest.class_names) != manifest.classes:
        raise ArtifactError(
            f"the manifest names {len(manifest.class_names)} classes and says that there are {manifest.classes}; "
            f"run `sparsyedge export` again"
        )
    regression = manifest.task == "regression"
    names = manifest.class_names or default_names(manifest.outputs, manifest.task)
    return Description(
        metadata_version=2 if regression or len(manifest.input_shape) != IMAGE_AXES else 1,
        layout=preprocessing.layout,
        dtype=preprocessing.dtype,
        scaling=preprocessing.scaling,
        sample_type=manifest.sample_type,
        task=manifest.task,
        class_names=None if regression else names,
        output_names=names if regression else None,
        method=manifest.method.name,
        **msgspec.structs.asdict(origin),
    )


def default_names(count: int, task: Task = "classes") -> tuple[str, ...]:
    """The names of unnamed classes or outputs."""
    return tuple(f"{'class' if task == 'classes' else 'output'} {number}" for number in range(count))


def read_description(path: Path) -> Description:
    """Read a model's description of itself from any file.

    Raises ArtifactError if sparsyedge did not deliver it.
    """
    try:
        size = path.stat().st_size
        if size > MOST_MODEL_BYTES:
            raise ArtifactError(f"{path} has {size:,} bytes, and no ONNX file has more than {MOST_MODEL_BYTES:,}")
        found = _read_metadata(memoryview(path.read_bytes()))
    except OSError as error:
        raise ArtifactError(f"cannot read the model {path}: {error.strerror or error}") from error
    except Malformed as error:
        raise ArtifactError(f"{path} is not an ONNX model: {error}; give the model.onnx of a run") from error
    version = found.get(f"{KEY_PREFIX}metadata_version")
    if version is None:
        raise ArtifactError(
            f"{path} has no metadata of sparsyedge, so nothing is known of its input and its classes; "
            f"give the model.onnx of a run"
        )
    if version not in map(str, range(1, METADATA_VERSION + 1)):
        raise ArtifactError(
            f"{path} has metadata version {version[:20]!r}, this sparsyedge reads versions 1 to {METADATA_VERSION}; "
            f"use the version that made it"
        )
    return _parse(found, path)


def _read_metadata(content: memoryview) -> dict[str, str]:
    entries = [field.content() for field in fields(content) if field.number == Model.METADATA_PROPS]
    size = sum(map(len, entries))
    if size > MOST_METADATA_BYTES:
        raise Malformed(f"it has {size:,} bytes of metadata, {MOST_METADATA_BYTES:,} are allowed")
    return dict(read_metadata_entry(entry) for entry in entries)


def _parse(found: dict[str, str], path: Path) -> Description:
    values: dict[str, object] = {}
    task: Task = "regression" if found.get(f"{KEY_PREFIX}task") == "regression" else "classes"
    try:
        for name in sorted(_keys_of(task)):
            text = found[f"{KEY_PREFIX}{name}"]
            values[name] = msgspec.json.decode(text) if name in JSON_FIELDS else text
        return msgspec.convert(values, Description)
    except KeyError as error:
        raise ArtifactError(f"{path} has no metadata {error}; it was not written whole: deliver it again") from error
    # Very deep nesting raises its own error.
    except (msgspec.DecodeError, RecursionError) as error:
        raise ArtifactError(f"{path} has metadata that cannot be used: {error}; deliver it again") from error
