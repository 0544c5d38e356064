"""`sparsyedge bench`: the table of benchmarks; each is imported only when it runs."""

from __future__ import annotations

import argparse

from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.commands.command_table import Command, listing, nearest
from sparsyedge.edge.errors import ConfigError

__all__ = ["SUBCOMMANDS", "main", "make_parser"]

SUBCOMMANDS = {
    "codecs": Command(
        "sparsyedge.benchmarks.codecs.command:main",
        "accuracy that each codec costs, on federated runs",
    ),
    "step": Command("sparsyedge.benchmarks.step.command:main", "time and memory of one training step, against peers"),
    "paper": Command(
        "sparsyedge.benchmarks.paper.command:main", "the tables and figures of the paper, run on this machine"
    ),
    "device": Command(
        "sparsyedge.benchmarks.device.command:main", "what training costs this board, dense against sparse"
    ),
    "meter": Command(
        "sparsyedge.benchmarks.meter.command:main", "what this board draws under known loads, to calibrate cpu-model"
    ),
    "compare": Command(
        "sparsyedge.benchmarks.device.compare_command:main", "results of `bench device` beside each other"
    ),
    "arm": Command("sparsyedge.benchmarks.arm.command:main", "a step on boards that are not at hand, modelled"),
    "runtime": Command(
        "sparsyedge.benchmarks.runtime.command:main",
        "a step in any onnxruntime against the training API",
    ),
    "predict": Command(
        "sparsyedge.benchmarks.runtime.predict_command:main",
        "one sample through a device's model against plain onnxruntime",
    ),
    "footprint": Command(
        "sparsyedge.benchmarks.footprint.command:main",
        "disk and memory that a device's install takes",
    ),
    "to-target": Command(
        "sparsyedge.benchmarks.to_target.command:main",
        "rounds, seconds, joules and megabytes until a target accuracy is held, by method",
    ),
    "dropout": Command("sparsyedge.benchmarks.dropout.command:main", "accuracy when devices are lost in every round"),
    "attacks": Command(
        "sparsyedge.benchmarks.attacks.command:main", "accuracy under hostile members, by aggregation rule"
    ),
    "selection": Command(
        "sparsyedge.benchmarks.selection.command:main", "rounds, seconds and joules, by how cohorts are chosen"
    ),
    "rounds": Command("sparsyedge.benchmarks.rounds.command:main", "rounds of many devices: speed, memory, losses"),
    "scale": Command(
        "sparsyedge.benchmarks.rounds.scale_command:main", "from measured rounds to a million devices, on paper"
    ),
    "private-sum": Command(
        "sparsyedge.benchmarks.wire.private_sum_command:main",
        "bytes and seconds of a sum of which nobody sees a part",
    ),
    "wire": Command(
        "sparsyedge.benchmarks.wire.command:main",
        "bytes, ratio, speed and error of the frame's codecs, against peers",
    ),
}


def main(argv: list[str]) -> int:
    """The command line of `sparsyedge bench`."""
    if argv and not argv[0].startswith("-"):
        if argv[0] not in SUBCOMMANDS:
            raise ConfigError(f"no benchmark `{argv[0]}`; {nearest(argv[0], SUBCOMMANDS)}")
        return SUBCOMMANDS[argv[0]].run(argv[1:])
    parser = make_parser()
    parser.parse_args(argv)
    parser.print_help()
    return 0


def make_parser() -> Parser:
    """The options of `sparsyedge bench` itself; each benchmark has its own parser."""
    return Parser(
        prog="sparsyedge bench",
        usage="sparsyedge bench [-h] [-v] [--version] BENCHMARK ...",
        description="Measure this machine and this runtime, mostly against peers in the same run.",
        epilog=f"benchmarks:\n{listing(SUBCOMMANDS)}\n\n`sparsyedge bench BENCHMARK --help` says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
