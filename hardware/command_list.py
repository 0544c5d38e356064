"""This folder's subcommands; pyproject.toml registers them in the group `sparsyedge.commands`.

`sparsyedge --help` imports this module: import nothing heavy here.
"""

from __future__ import annotations

from sparsyedge.edge.commands.command_table import Command

FLASH = Command(
    "sparsyedge.hardware.flash.command:main",
    "make cards and phones that become devices by themselves",
    extra="coordinator",
)
