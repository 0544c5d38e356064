"""Subcommands as rows of a table. A row says where the code is; we import it only when the command runs.

The function takes the remaining arguments and returns the exit code. Its module has `make_parser`, and `SUBCOMMANDS` if
it has a table of its own.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import cast

__all__ = ["Command", "CommandTable", "listing", "nearest"]


@dataclass(frozen=True)
class Command:
    """One subcommand."""

    target: str
    """Where it lives: "module:function"."""
    summary: str
    """What it does, as one line of a help page."""
    extra: str | None = None
    """The extra with its dependencies; None if the base (device) install has them all."""

    def load(self) -> ModuleType:
        """The command's module; raises ModuleNotFoundError if a dependency is missing."""
        return importlib.import_module(self.target.partition(":")[0])

    def run(self, argv: list[str]) -> int:
        """Run the command and return its exit code."""
        function = cast("Callable[[list[str]], int]", getattr(self.load(), self.target.partition(":")[2]))
        return function(argv)


CommandTable = Mapping[str, Command]


def nearest(name: str, known: Collection[str]) -> str:
    """A hint: the name the user probably meant, or all names."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean `{near[0]}`?" if near else f"allowed are {', '.join(known)}"


def listing(table: CommandTable) -> str:
    """One line per subcommand."""
    width = max(map(len, table)) + 2
    return "\n".join(f"  {name:<{width}}{command.summary}" for name, command in table.items())
