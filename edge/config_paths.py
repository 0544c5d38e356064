"""Paths in a config file: relative ones are relative to that file, `~` is the user's home."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from sparsyedge.edge.errors import ConfigError

__all__ = ["DatasetKey", "PathKey", "resolve_paths"]

PathKey = Annotated[str, msgspec.Meta(extra={"path": "place"})]
"""A key whose value is a path."""
DatasetKey = Annotated[str, msgspec.Meta(extra={"path": "dataset"})]
"""A key whose value is the name of a data set, or the path of somebody's own."""

Config = TypeVar("Config", bound=msgspec.Struct)


def resolve_paths(config: Config, folder: Path) -> Config:
    """The same config with every path in it absolute; `folder` is the one that its file is in."""
    changes: dict[str, Any] = {}
    data_dir: str | None = getattr(config, "data_dir", None)
    for field in msgspec.inspect.type_info(type(config)).fields:  # type: ignore[attr-defined]
        value = getattr(config, field.name)
        if isinstance(value, msgspec.Struct):
            changes[field.name] = resolve_paths(value, folder)
        elif isinstance(value, str) and (kind := _path_kind(field.type)) is not None:
            try:
                changes[field.name] = _place(value, folder) if kind == "place" else _dataset(value, folder, data_dir)
            except RuntimeError as error:  # there is no such user
                raise ConfigError(f"key `{field.encode_name}` has value {value!r}: {error}") from error
    return msgspec.structs.replace(config, **changes)


def _path_kind(info: Any) -> str | None:
    """How a key's value is a path; None where it is none."""
    for option in getattr(info, "types", (info,)):
        if isinstance(option, msgspec.inspect.Metadata) and option.extra and "path" in option.extra:
            return str(option.extra["path"])
    return None


def _place(value: str, folder: Path) -> str:
    return str((folder / Path(value).expanduser()).resolve())


def _dataset(value: str, folder: Path, data_dir: str | None) -> str:
    """A name as it is; a path beside the config file, or in one of the folders where data is looked for."""
    # Here, because messages need configs, and not the readers of data.
    from sparsyedge.edge.data.loaders import DATASETS

    beside = folder / Path(value).expanduser()
    if value in DATASETS or not (value.endswith(".npz") or os.sep in value or beside.is_dir()):
        return value
    if not beside.exists():
        # edge/data/loaders.py looks there.
        for place in (data_dir, os.environ.get("SPARSYEDGE_DATA"), "~/.cache/sparsyedge"):
            if place and (found := folder / Path(place).expanduser() / value).exists():
                return str(found.resolve())
    return str(beside.resolve())
