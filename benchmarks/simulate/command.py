"""`sparsyedge simulate RUN.toml`: many devices on this machine, with the trainer, wire and rounds of real runs."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import msgspec
from rich.console import Console

from sparsyedge.benchmarks.common.progress import LiveProgress
from sparsyedge.benchmarks.common.run_summary import as_json, print_rounds
from sparsyedge.benchmarks.simulate.config import SimulatedRunConfig, load_simulated_run
from sparsyedge.benchmarks.simulate.engine import Engine
from sparsyedge.benchmarks.simulate.engine_arguments import add_engine_arguments
from sparsyedge.benchmarks.simulate.simulation import simulate
from sparsyedge.coordinator.record.observer import Observer, SilentObserver
from sparsyedge.coordinator.record.records import RunSummary
from sparsyedge.edge.commands.arguments import Parser

__all__ = ["main", "make_parser"]


def main(argv: list[str]) -> int:
    """The command line of `sparsyedge simulate`."""
    arguments = make_parser().parse_args(argv)
    config = load_simulated_run(arguments.config)
    if arguments.out is not None:
        config = msgspec.structs.replace(config, run_dir=str(arguments.out))
    console = Console(stderr=arguments.json)
    started_s = time.monotonic()
    if arguments.json:
        summary = _simulate(config, arguments, SilentObserver())
        print(as_json(summary))
        return 0
    with LiveProgress(console) as progress:
        summary = _simulate(config, arguments, progress)
    print_rounds(console, summary)
    console.print(f"took      {time.monotonic() - started_s:.0f} s", highlight=False)
    return 0


def _simulate(config: SimulatedRunConfig, arguments: argparse.Namespace, observer: Observer) -> RunSummary:
    return simulate(
        config,
        link=arguments.link,
        workers=arguments.workers,
        engine=Engine(arguments.engine, arguments.address),
        observer=observer,
        longer=True,
    )


def make_parser() -> Parser:
    parser = Parser(
        prog="sparsyedge simulate",
        description="Simulate a federated run of many devices, on this machine or a Ray cluster. Start it again to "
        "resume an interrupted run, or one with more `rounds` now. RUN.toml is the coordinator's, with a table "
        "[simulation].",
    )
    parser.add_argument("config", type=Path, metavar="RUN.toml")
    parser.add_argument(
        "--link",
        choices=("memory", "mqtt"),
        default="memory",
        help="connects devices and coordinator: pipes, or a Mosquitto on loopback (default: %(default)s)",
    )
    add_engine_arguments(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="the run directory (default: the config's `run_dir`)")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    return parser
