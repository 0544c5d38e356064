"""Tables of RUN.toml that belong to other commands: the coordinator checks them, then ignores them.

A command that extends RUN.toml declares a subclass of RunConfig with one more key, and names it in the entry-point
group `sparsyedge.run_tables` under that key.
"""

from __future__ import annotations

from importlib import metadata
from typing import Any, TypeVar, cast

import msgspec

from sparsyedge.edge.config import Section

__all__ = ["GROUP", "extended_configs", "file_config"]

GROUP = "sparsyedge.run_tables"

Config = TypeVar("Config", bound=Section)


def file_config(kind: type[Config], content: dict[str, Any]) -> type[Config]:
    """Extend `kind` by the keys of other commands, to check a whole run file with this content."""
    own = set(kind.__struct_fields__)
    entries = {entry.name: entry for entry in metadata.entry_points(group=GROUP) if entry.name not in own}
    # Load a type only if the file has its key: importing another command takes time, and it may not be installed.
    others = [(key, _type_of(key, entry) if key in content else Any, None) for key, entry in sorted(entries.items())]
    extended = msgspec.defstruct(kind.__name__, others, bases=(kind,), frozen=True, kw_only=True)
    return cast("type[Config]", extended)


def extended_configs() -> list[type[Section]]:
    """Every config that adds a key to RUN.toml."""
    return [entry.load() for entry in sorted(metadata.entry_points(group=GROUP), key=lambda entry: entry.name)]


def _type_of(key: str, entry: metadata.EntryPoint) -> Any:
    try:
        extended = entry.load()
    except ModuleNotFoundError:  # without its package we cannot check the table, and nobody will read it
        return Any
    return next(field.type for field in msgspec.structs.fields(extended) if field.name == key)
