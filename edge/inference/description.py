"""A delivered model's description of itself: ONNX metadata under keys that begin with `sparsyedge.`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from sparsyedge.edge.data.form import SampleType
from sparsyedge.edge.errors import ArtifactError
from sparsyedge.edge.inference.onnx_format import Model, read_metadata_entry
from sparsyedge.edge.inference.preprocessing import DataType, Layout, Preprocessing
from sparsyedge.edge.inference.protobuf import Malformed, fields
from sparsyedge.edge.model.artifacts import ClassName, Manifest

__all__ = ["KEY_PREFIX", "Description", "Origin", "default_names", "describe", "read_description"]

KEY_PREFIX = "sparsyedge."
METADATA_VERSION = 1
MOST_METADATA_BYTES = 16 << 20
MOST_MODEL_BYTES = 2 << 30
"""The size limit of a protobuf file."""
JSON_FIELDS = frozenset({"metadata_version", "class_names", "round", "accuracy", "sparsity"})
"""Fields stored as JSON; all others are plain text."""
Text = Annotated[str, msgspec.Meta(max_length=1000)]


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model comes from, and how well it scored in its run."""

    run: Text
    round: int
    accuracy: float
    """On the test samples of the run's data set."""
    sparsity: float
    """The share of prunable weights that are zero."""


class Description(Origin, frozen=True, kw_only=True):
    """Everything needed to use a model; every field is a key of its metadata."""

    metadata_version: int
    """The version of this list of keys."""
    layout: Layout
    dtype: DataType
    scaling: Text
    sample_type: SampleType
    """How the training samples were stored."""
    class_names: Annotated[tuple[ClassName, ...], msgspec.Meta(min_length=1)]
    method: Text

    def metadata(self) -> dict[str, str]:
        """The metadata to write, in key order."""
        return {
            f"{KEY_PREFIX}{name}": msgspec.json.encode(value).decode() if name in JSON_FIELDS else str(value)
            for name, value in sorted(msgspec.structs.asdict(self).items())
        }


def describe(manifest: Manifest, preprocessing: Preprocessing, origin: Origin) -> Description:
    """The description of these artifacts' model; unnamed classes are called by their numbers."""
    if manifest.class_names and len(manifest.class_names) != manifest.classes:
        raise ArtifactError(
            f"the manifest names {len(manifest.class_names)} classes and says that there are {manifest.classes}; "
            f"run `sparsyedge export` again"
        )
    return Description(
        metadata_version=METADATA_VERSION,
        layout=preprocessing.layout,
        dtype=preprocessing.dtype,
        scaling=preprocessing.scaling,
        sample_type=manifest.sample_type,
        class_names=manifest.class_names or default_names(manifest.classes),
        method=manifest.method.name,
        **msgspec.structs.asdict(origin),
    )


def default_names(classes: int) -> tuple[str, ...]:
    """The names of unnamed classes."""
    return tuple(f"class {number}" for number in range(classes))


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
    if version != str(METADATA_VERSION):
        raise ArtifactError(
            f"{path} has metadata version {version[:20]!r}, this sparsyedge reads version {METADATA_VERSION}; "
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
    try:
        for name in Description.__struct_fields__:
            text = found[f"{KEY_PREFIX}{name}"]
            values[name] = msgspec.json.decode(text) if name in JSON_FIELDS else text
        return msgspec.convert(values, Description)
    except KeyError as error:
        raise ArtifactError(f"{path} has no metadata {error}; it was not written whole: deliver it again") from error
    # Very deep nesting raises its own error.
    except (msgspec.DecodeError, RecursionError) as error:
        raise ArtifactError(f"{path} has metadata that cannot be used: {error}; deliver it again") from error
