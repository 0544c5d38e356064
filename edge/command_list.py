"""The subcommands in this folder; pyproject.toml lists them in the group `sparsyedge.commands`."""

from __future__ import annotations

from sparsyedge.edge.commands.command_table import Command

EDGE = Command("sparsyedge.edge.commands.edge_command:main", "run this machine as a device of a fleet")
PREDICT = Command("sparsyedge.edge.commands.predict_command:main", "classify images and .npz files with a run's model")
METHODS = Command("sparsyedge.edge.commands.methods_command:main", "list the training methods that a run can use")
FRAME = Command("sparsyedge.edge.commands.frame_command:main", "inspect a frame: a model or an update on the wire")
COMPLETION = Command("sparsyedge.edge.commands.completion_command:main", "print a completion script for your shell")
