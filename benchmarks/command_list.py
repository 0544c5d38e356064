"""This folder's subcommands; pyproject.toml registers them in the group `sparsyedge.commands`.

`sparsyedge --help` imports this module: import nothing heavy here.
"""

from __future__ import annotations

from sparsyedge.edge.commands.command_table import Command

DEMO = Command(
    "sparsyedge.benchmarks.demo.command:main", "a whole federated run on this machine, in one command", extra="demo"
)
SIMULATE = Command(
    "sparsyedge.benchmarks.simulate.command:main",
    "a run of many simulated devices, here or on a Ray cluster",
    extra="demo",
)
BENCH = Command(
    "sparsyedge.benchmarks.bench_command:main",
    "measure this machine: training steps and the wire, against peers",
    extra="demo",
)
REPORT = Command(
    "sparsyedge.benchmarks.report.command:main", "plots of one run, or of several beside each other", extra="demo"
)
