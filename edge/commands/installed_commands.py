"""The subcommands of `sparsyedge`: one entry point of group `sparsyedge.commands` each, in any installed package.

An entry point leads to a `Command` in a module that imports nothing heavy: `sparsyedge --help` loads all of them. The
help page lists commands in the order of pyproject.toml.
"""

from __future__ import annotations

import logging
from importlib import metadata

from sparsyedge.edge.commands.command_table import Command, nearest
from sparsyedge.edge.errors import SparsyedgeError
from sparsyedge.edge.installation import PACKAGE, install_command

__all__ = ["find_command", "installed_commands"]

log = logging.getLogger(__name__)

GROUP = "sparsyedge.commands"


def find_command(name: str) -> Command:
    """The command of that name; raises SparsyedgeError if no package provides it."""
    entries = _entry_points()
    if name not in entries:
        raise SparsyedgeError(f"unknown subcommand `{name}`; {nearest(name, entries)}")
    return _load(entries[name])


def installed_commands() -> dict[str, Command]:
    """Every command by name; warns about entry points that fail to load and skips them."""
    commands = {}
    for name, entry in _entry_points().items():
        try:
            commands[name] = _load(entry)
        except Exception as error:  # another package's broken entry point must not break ours
            log.warning("subcommand %s (%s) cannot be loaded and is left out: %r", name, entry.value, error)
    return commands


def _entry_points() -> dict[str, metadata.EntryPoint]:
    """Ours come first: no other package can replace them."""
    found = metadata.entry_points(group=GROUP)
    entries: dict[str, metadata.EntryPoint] = {}
    for entry in sorted(found, key=lambda entry: entry.dist is None or entry.dist.name != PACKAGE):
        entries.setdefault(entry.name, entry)
    if not entries:
        raise SparsyedgeError(
            f"this install of {PACKAGE} lists no subcommands (entry points of group {GROUP}): it is older than its "
            f"sources; run `{install_command()}`"
        )
    return entries


def _load(entry: metadata.EntryPoint) -> Command:
    command = entry.load()
    if not isinstance(command, Command):
        raise SparsyedgeError(f"entry point {entry.name} = {entry.value} is a {type(command).__name__}, not a Command")
    return command
