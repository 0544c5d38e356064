"""The subcommands of this folder; pyproject.toml lists them in the group `sparsyedge.commands`.

`sparsyedge --help` imports this module: import nothing heavy here.
"""

from __future__ import annotations

from sparsyedge.edge.commands.command_table import Command

COORDINATOR = Command(
    "sparsyedge.coordinator.commands.coordinator_command:main",
    "lead a fleet through the rounds of a run",
    extra="coordinator",
)
FLEET = Command(
    "sparsyedge.coordinator.commands.fleet_command:main",
    "upgrade the devices of a secured fleet over the air",
    extra="coordinator",
)
