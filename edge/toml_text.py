"""Writes TOML, which Python's own library only reads, and changes tables that came from it."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["merged_tables", "toml_text"]


def toml_text(table: dict[str, Any]) -> str:
    """The table as a TOML file, without keys that are None; JSON's numbers and strings are valid TOML."""
    lines: list[str] = []
    _add_table(lines, "", table)
    return "".join(f"{line}\n" for line in lines)


def merged_tables(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """The table with these changes; tables within it are changed likewise."""
    result = dict(base)
    for key, value in change.items():
        below = result.get(key)
        result[key] = merged_tables(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def _add_table(lines: list[str], name: str, table: dict[str, Any], *, is_item: bool = False) -> None:
    if name:
        lines.append(f"[[{name}]]" if is_item else f"[{name}]")
    values = {key: value for key, value in table.items() if value is not None}
    tables = {key: value for key, value in values.items() if _is_table(value)}
    lines += [
        # The one character that is legal in a JSON string and not in TOML.
        f"{key} = {json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f")
        for key, value in values.items()
        if key not in tables
    ]
    for key, value in tables.items():
        path = f"{name}.{key}" if name else key
        if isinstance(value, dict):
            _add_table(lines, path, value)
        else:
            for item in value:
                _add_table(lines, path, item, is_item=True)


def _is_table(value: object) -> bool:
    return isinstance(value, dict) or (
        isinstance(value, list | tuple) and any(isinstance(item, dict) for item in value)
    )
