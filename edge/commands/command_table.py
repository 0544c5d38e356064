"""Tables of subcommands, each imported when it is used: a device has not what a coordinator's commands need.

A row is the subcommand's name, where it lives ("module:function") and what it does. The function takes the arguments
that are left and returns the exit code. Its module has `make_parser`, and `SUBCOMMANDS` where it has its own table.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import cast

__all__ = ["CommandTable", "listing", "load", "nearest", "run_command"]

CommandTable = Mapping[str, tuple[str, str]]


def run_command(table: CommandTable, name: str, argv: list[str]) -> int:
    """Run a subcommand and return its exit code."""
    run = cast("Callable[[list[str]], int]", getattr(load(table, name), table[name][0].partition(":")[2]))
    return run(argv)


def load(table: CommandTable, name: str) -> ModuleType:
    """The module of a subcommand; raises ModuleNotFoundError where something that it needs is not installed."""
    return importlib.import_module(table[name][0].partition(":")[0])


def nearest(name: str, table: CommandTable) -> str:
    """What somebody who typed that may have meant, or all that there is."""
    near = difflib.get_close_matches(name, table, n=1)
    return f"did you mean `{near[0]}`?" if near else f"allowed are {', '.join(table)}"


def listing(table: CommandTable) -> str:
    """One line per subcommand."""
    width = max(map(len, table)) + 2
    return "\n".join(f"  {name:<{width}}{summary}" for name, (_, summary) in table.items())
