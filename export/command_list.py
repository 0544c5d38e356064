"""This folder's subcommands; pyproject.toml registers them in the group `sparsyedge.commands`.

`sparsyedge --help` imports this module: import nothing heavy here.
"""

from __future__ import annotations

from sparsyedge.edge.commands.command_table import Command

EXPORT = Command(
    "sparsyedge.export.command:main",
    "make the artifacts that devices train: graphs, checkpoint, manifest",
    extra="export",
)
