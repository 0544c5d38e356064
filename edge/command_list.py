"""The subcommands in this folder; pyproject.toml lists them in the group `sparsyedge.commands`."""

from __future__ import annotations

from sparsyedge.edge.commands.command_table import Command

EDGE = Command("sparsyedge.edge.commands.edge_command:main", "run this machine as a device of a fleet")
PREDICT = Command(
    "sparsyedge.edge.commands.predict_command:main", "say what a run's model sees in images and .npz files"
)
METHODS = Command("sparsyedge.edge.commands.methods_command:main", "list the methods that a run can be trained with")
FRAME = Command("sparsyedge.edge.commands.frame_command:main", "look into a frame: a model or an update as it travels")
COMPLETION = Command(
    "sparsyedge.edge.commands.completion_command:main", "print what lets a shell complete these commands"
)
