"""`python -m sparsyedge.coordinator.commands.configuration_page`: the tables of docs/reference/configuration.md.

Each struct is a table of the config file, and each field a key. Types, defaults and bounds come from the struct, and
the meaning from the docstring below the field.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.run_tables import extended_configs
from sparsyedge.edge.config import DeviceConfig

__all__ = ["COMMAND", "fill", "main"]

COMMAND = "python -m sparsyedge.coordinator.commands.configuration_page docs/reference/configuration.md"
FILES: dict[str, tuple[type[msgspec.Struct], ...]] = {
    "run.toml": (RunConfig, *extended_configs()),
    "device.toml": (DeviceConfig,),
}
BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


def main(argv: list[str]) -> int:
    """Write the tables into the page, between their markers."""
    page = Path(argv[0])
    page.write_text(fill(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


def fill(page: str) -> str:
    """Return the page with its tables updated from the structs."""
    for name, kinds in FILES.items():
        begin, end = f"<!-- {name}: {COMMAND} -->\n", f"<!-- end of {name} -->"
        before, found, rest = page.partition(begin)
        if not found or end not in rest:
            raise ValueError(f"the page has no place for {name}: {begin.strip()} ... {end}")
        tables = "\n".join(_tables(kinds, ""))
        page = f"{before}{begin}{tables}\n{end}{rest.partition(end)[2]}"
    return page


def _tables(kinds: tuple[type[msgspec.Struct], ...], path: str) -> Iterator[str]:
    """Yield a table with the keys of all these structs, then the tables of nested structs."""
    if path:
        yield f"\n### `[{path}]`\n{inspect.getdoc(kinds[0])}\n"
    yield "| key | type | default | allowed | meaning |"
    yield "| --- | --- | --- | --- | --- |"
    meanings = {name: meaning for kind in kinds for name, meaning in field_docs(kind).items()}
    fields = {
        field.name: field
        for kind in kinds
        for field in msgspec.inspect.type_info(kind).fields  # type: ignore[attr-defined]
    }
    below: list[tuple[type[msgspec.Struct], str]] = []
    for field in fields.values():
        table = _table_of(field.type)
        if table is not None:
            place = f"{path}.{field.encode_name}" if path else field.encode_name
            is_named = isinstance(_bare(field.type), msgspec.inspect.DictType)
            below.append((table, f"{place}.NAME" if is_named else place))
        cells = (f"`{field.encode_name}`", _type(field.type), _default(field), _allowed(field.type))
        yield "| " + " | ".join((*cells, meanings[field.name])) + " |"
    for table, place in below:
        yield from _tables((table,), place)


def field_docs(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Return the docstring below each field of a struct, as one line; raises ValueError if one is missing."""
    found: dict[str, str] = {}
    for base in kind.__mro__:
        if issubclass(base, msgspec.Struct) and base is not msgspec.Struct:
            found = _own_field_docs(base) | found
    missing = [name for name in kind.__struct_fields__ if name not in found]
    if missing:
        raise ValueError(f"fields of {kind.__name__} without a docstring: {', '.join(missing)}")
    return found


def _own_field_docs(kind: type) -> dict[str, str]:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for statement, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            match after:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    found[statement.target.id] = re.sub(r"\s+", " ", text).replace("|", "\\|")
    return found


def _options(info: Any) -> list[Any]:
    """Return the types that a value may have, except None."""
    return [option for option in getattr(info, "types", (info,)) if not isinstance(option, msgspec.inspect.NoneType)]


def _bare(info: Any) -> Any:
    return info.type if isinstance(info, msgspec.inspect.Metadata) else info


def _table_of(info: Any) -> type[msgspec.Struct] | None:
    for option in map(_bare, _options(info)):
        if isinstance(option, msgspec.inspect.DictType):
            return _table_of(option.value_type)
        if isinstance(option, msgspec.inspect.StructType):
            return option.cls
    return None


def _type(info: Any) -> str:
    declared, *others = _options(info)
    if others:
        return " or ".join(_type(option) for option in (declared, *others))
    extra = declared.extra if isinstance(declared, msgspec.inspect.Metadata) else None
    if extra and "path" in extra:
        return {"place": "path", "dataset": "name or path", "store": "path or URL"}[extra["path"]]
    match _bare(declared):
        case msgspec.inspect.BoolType():
            return "true or false"
        case msgspec.inspect.IntType():
            return "integer"
        case msgspec.inspect.FloatType():
            return "number"
        case msgspec.inspect.StructType():
            return "table"
        case msgspec.inspect.VarTupleType(item_type=item):
            return f"list of {_type(item)}s"
        case msgspec.inspect.DictType(value_type=msgspec.inspect.AnyType()):
            return "table"
        case msgspec.inspect.DictType(value_type=value):
            return f"table of {_type(value)}s"
        case msgspec.inspect.StrType(pattern=None) | msgspec.inspect.LiteralType():
            return "text"
        case msgspec.inspect.StrType():
            return "identifier"
        case other:
            raise ValueError(f"no word for the type {other}")


def _default(field: Any) -> str:
    if field.required:
        return "required"
    if isinstance(_bare(field.type), msgspec.inspect.DictType):
        return "empty"
    if field.default is msgspec.NODEFAULT:
        return "the device's cores" if field.name == "threads" else "see below"
    if field.default is None:
        return "-"
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    if isinstance(field.default, msgspec.Struct):
        return "see below"
    return f"`{field.default}`" if not isinstance(field.default, str) else f'`"{field.default}"`'


def _allowed(info: Any) -> str:
    option, *others = map(_bare, _options(info))
    if others:
        return ", ".join(filter(None, map(_allowed, (option, *others))))
    if isinstance(option, msgspec.inspect.VarTupleType):
        return _allowed(option.item_type)
    if isinstance(option, msgspec.inspect.LiteralType):
        return ", ".join(f"`{value}`" for value in option.values)
    ends = {end: getattr(option, end, None) for end in BOUNDS}
    return ", ".join(f"{BOUNDS[end]} {_number(value)}" for end, value in ends.items() if value is not None)


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
