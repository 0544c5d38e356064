"""A map from names to values that never changes: `set` and `without` give a new one, and neither copies. Pure.

The newest version of a table owns a plain dict, and every older version knows only what to undo. So the newest one is
as fast as a dict, and an older one is right but slow: reading it moves the dict back to it. (Henry Baker, "Shallow
binding makes functional arrays fast", 1991.) The state machine reads the newest version only.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from typing import Any, Final, TypeVar, overload

__all__ = ["Table", "table"]

Value = TypeVar("Value")
Default = TypeVar("Default")

ABSENT: Final[Any] = object()


class Table(Mapping[str, Value]):
    """Items in the order in which their names were first set. Do not change a table while you iterate over it."""

    __slots__ = ("_before", "_items", "_name", "_newer")

    def __init__(self, items: Mapping[str, Value] | Iterable[tuple[str, Value]] = ()) -> None:
        self._items: dict[str, Value] | None = dict(items)
        # Only an older version has these: `_newer` is this table with `_name` set to another value than `_before`.
        self._newer: Table[Value] | None = None
        self._name = ""
        self._before: Value = ABSENT

    def set(self, name: str, value: Value) -> Table[Value]:
        """This table with one more item, or another value for one."""
        items = self._own()
        newer = self._pass_on(items, name)
        items[name] = value
        return newer

    def without(self, name: str) -> Table[Value]:
        """This table without one item; the same one if it has none of that name."""
        items = self._own()
        if name not in items:
            return self
        newer = self._pass_on(items, name)
        del items[name]
        return newer

    def _pass_on(self, items: dict[str, Value], name: str) -> Table[Value]:
        """Give the dict to a newer version, in which `name` is about to change."""
        newer: Table[Value] = Table.__new__(Table)
        newer._items, newer._newer = items, None
        self._items, self._newer = None, newer
        self._name, self._before = name, items.get(name, ABSENT)
        return newer

    def _own(self) -> dict[str, Value]:
        items = self._items
        return items if items is not None else self._take_back()

    def _take_back(self) -> dict[str, Value]:
        """Undo what newer versions changed, and turn them into versions that know how to do it again."""
        older = [self]
        while (newer := older[-1]._newer) is not None:
            older.append(newer)
        newest = older.pop()
        items = newest._items
        assert items is not None
        for table in reversed(older):
            newest._items, newest._newer = None, table
            newest._name, newest._before = table._name, items.get(table._name, ABSENT)
            if table._before is ABSENT:
                items.pop(table._name, None)
            else:
                items[table._name] = table._before
            table._items, table._newer = items, None
            newest = table
        return items

    # ---- as any mapping ----------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Value:
        return self._own()[name]

    def __contains__(self, name: object) -> bool:
        return name in self._own()

    def __iter__(self) -> Iterator[str]:
        return iter(self._own())

    def __len__(self) -> int:
        return len(self._own())

    @overload
    def get(self, name: str, /) -> Value | None: ...

    @overload
    def get(self, name: str, /, default: Value | Default) -> Value | Default: ...

    def get(self, name: str, /, default: Value | Default | None = None) -> Value | Default | None:
        return self._own().get(name, default)

    def items(self) -> ItemsView[str, Value]:
        return self._own().items()

    def values(self) -> ValuesView[Value]:
        return self._own().values()

    def __repr__(self) -> str:
        return f"Table({self._own()!r})"


def table(items: Mapping[str, Value]) -> Table[Value]:
    """The items as a table; a table as it is."""
    return items if isinstance(items, Table) else Table(items)
