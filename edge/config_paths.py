"""Paths in a config file: relative to that file, with `~` for the user's home."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from sparsyedge.edge.errors import ConfigError

__all__ = ["DatasetKey", "PathKey", "StoreKey", "resolve_paths"]

PathKey = Annotated[str, msgspec.Meta(extra={"path": "place"})]
"""A key whose value is a path."""
DatasetKey = Annotated[str, msgspec.Meta(extra={"path": "dataset"})]
"""A key whose value is the name of a data set, or the path of the user's own."""
StoreKey = Annotated[str, msgspec.Meta(extra={"path": "store"})]
"""A key whose value is the path of a folder, or the URL of a store."""

Config = TypeVar("Config", bound=msgspec.Struct)


def resolve_paths(config: Config, folder: Path) -> Config:
    """The same config with absolute paths; `folder` holds the config file."""
    changes: dict[str, Any] = {}
    data_dir: str | None = getattr(config, "data_dir", None)
    for field in msgspec.inspect.type_info(type(config)).fields:  # type: ignore[attr-defined]
        value = getattr(config, field.name)
        if isinstance(value, msgspec.Struct):
            changes[field.name] = resolve_paths(value, folder)
        elif isinstance(value, str) and (kind := _path_kind(field.type)) is not None:
            try:
                changes[field.name] = _resolve(kind, value, folder, data_dir)
            except RuntimeError as error:  # no such user
                raise ConfigError(f"key `{field.encode_name}` has value {value!r}: {error}") from error
    return msgspec.structs.replace(config, **changes)


def _path_kind(info: Any) -> str | None:
    """Which kind of path a key holds; None if it holds none."""
    for option in getattr(info, "types", (info,)):
        if isinstance(option, msgspec.inspect.Metadata) and option.extra and "path" in option.extra:
            return str(option.extra["path"])
    return None


def _resolve(kind: str, value: str, folder: Path, data_dir: str | None) -> str:
    if kind == "dataset":
        return _dataset(value, folder, data_dir)
    return value if kind == "store" and "://" in value else _place(value, folder)


def _place(value: str, folder: Path) -> str:
    return str((folder / Path(value).expanduser()).resolve())


def _dataset(value: str, folder: Path, data_dir: str | None) -> str:
    """A name stays as it is; a path is looked up beside the config file, then in the data folders."""
    # Imported here: messages need configs but not the data readers.
    from sparsyedge.edge.data.loaders import DATASETS

    beside = folder / Path(value).expanduser()
    if value in DATASETS or not (value.endswith(".npz") or os.sep in value or beside.is_dir()):
        return value
    if not beside.exists():
        # The same folders as in edge/data/loaders.py.
        for place in (data_dir, os.environ.get("SPARSYEDGE_DATA"), "~/.cache/sparsyedge"):
            if place and (found := folder / Path(place).expanduser() / value).exists():
                return str(found.resolve())
    return str(beside.resolve())
