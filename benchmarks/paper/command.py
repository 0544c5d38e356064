"""`sparsyedge bench paper TABLE`: runs or resumes an experiment and prints our figures next to the paper's."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec
from rich.console import Console

from sparsyedge.benchmarks.common.number_arguments import positive, positive_number
from sparsyedge.benchmarks.common.progress import LiveProgress
from sparsyedge.benchmarks.paper.experiments import EXPERIMENTS, Row
from sparsyedge.benchmarks.paper.results import finished_result, run_setting
from sparsyedge.benchmarks.paper.settings import OTHER_SEED, SCALES, SEEDS, Scale, SeedsVary, Setting
from sparsyedge.benchmarks.paper.tables import as_document, print_experiment
from sparsyedge.benchmarks.simulate import Backend
from sparsyedge.benchmarks.simulate.engine import Engine
from sparsyedge.benchmarks.simulate.engine_arguments import add_engine_arguments
from sparsyedge.coordinator.record.observer import Observer, SilentObserver
from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.wire.codecs import DEFAULT_CODEC, Codec

__all__ = ["main", "make_parser"]

Run = Callable[[Setting], dict[str, Any]]
Planned = Sequence[tuple[Row, Sequence[Setting]]]
Results = list[tuple[Row, list[dict[str, Any]]]]


def main(argv: list[str]) -> int:
    """The command line of `sparsyedge bench paper`."""
    arguments = make_parser().parse_args(argv)
    console = Console(stderr=arguments.json)
    experiment = EXPERIMENTS[arguments.table]
    full = arguments.scale == "full"
    scale = _scale(arguments)
    seeds = SEEDS[: arguments.seeds or (len(SEEDS) if arguments.finished else scale.seeds)]
    rows = [row for row in experiment.rows(full) if arguments.only in row.label]
    if not rows:
        labels = ", ".join(row.label for row in experiment.rows(full))
        raise ConfigError(f"no row of {arguments.table} has {arguments.only!r} in its name; there are: {labels}")
    if arguments.plot is not None:
        # Imported here: tables need no matplotlib.
        from sparsyedge.benchmarks.paper.drawings import check_plot_path

        check_plot_path(arguments.plot)
    # All settings before the first run: what is wrong with the last row should not take hours to come to light.
    planned = [(row, _settings(row, arguments, seeds)) for row in rows]
    if arguments.estimate:
        return _estimate(arguments, planned, console)
    results = _finished(arguments, planned) if arguments.finished else _run_all(arguments, planned, console)
    if arguments.plot is not None:
        from sparsyedge.benchmarks.paper.drawings import write_drawing

        write_drawing(experiment.drawing, results, arguments.plot)
    if arguments.json:
        print(json.dumps(as_document(arguments.table, experiment, results, scale=arguments.scale)))
    else:
        print_experiment(console, experiment, results)
    return 0


def _run_all(arguments: argparse.Namespace, planned: Planned, console: Console) -> Results:
    """Run what has no result yet, one after another."""
    run = _runner(arguments, console)
    results: Results = []
    for number, (row, settings) in enumerate(planned, start=1):
        console.print(f"{number}/{len(planned)} {row.label}", highlight=False)
        results.append((row, [run(setting) for setting in settings]))
    return results


def _finished(arguments: argparse.Namespace, planned: Planned) -> Results:
    """The rows that have results, each with the seeds that are there; raises ConfigError if there are none."""
    found = [
        (row, [finished_result(setting, arguments.results, backend=arguments.backend) for setting in settings])
        for row, settings in planned
    ]
    results = [(row, [each for each in documents if each is not None]) for row, documents in found]
    if not any(documents for _, documents in results):
        raise ConfigError(
            f"--finished: {arguments.results} has no result of {arguments.table} at scale {arguments.scale}; leave the "
            "option out to run it, or name the folder of its documents with --results"
        )
    return [(row, documents) for row, documents in results if documents]


def _settings(row: Row, arguments: argparse.Namespace, seeds: tuple[int, ...]) -> list[Setting]:
    full = arguments.scale == "full"
    varied = None if arguments.seeds_vary == "all" else arguments.seeds_vary
    return [
        msgspec.structs.replace(setting, seeds_vary=varied, codec=arguments.codec)
        for setting in row.settings(_scale(arguments), seeds, full=full, rounds=arguments.rounds)
    ]


def _estimate(arguments: argparse.Namespace, rows: Planned, console: Console) -> int:
    # Imported here: running the experiments needs none of it.
    from sparsyedge.benchmarks.paper import estimate

    estimates = estimate.estimate(rows, lambda text: console.print(text, highlight=False))
    if arguments.json:
        print(json.dumps(estimate.as_document(arguments.table, arguments.scale, estimates)))
    else:
        estimate.print_estimates(console, estimates)
    return 0


def _scale(arguments: argparse.Namespace) -> Scale:
    """The scale with the user's changes, except the rounds: rows may set their own number."""
    scale = SCALES[arguments.scale]
    changes: dict[str, Any] = {}
    if arguments.width is not None:
        changes["width"] = arguments.width
    if arguments.model is not None:
        changes["images"] = arguments.model
    if arguments.learning_rate is not None:
        changes["learning_rate"] = arguments.learning_rate
    return dataclasses.replace(scale, **changes)


def _runner(arguments: argparse.Namespace, console: Console) -> Run:
    """The function that turns a setting into a result, with the progress that the user asked for."""

    def run(setting: Setting) -> dict[str, Any]:
        if arguments.json:
            return observed(setting, SilentObserver())
        with LiveProgress(console) as progress:
            return observed(setting, progress)

    def observed(setting: Setting, observer: Observer) -> dict[str, Any]:
        return run_setting(
            setting,
            arguments.results,
            data_dir=arguments.data_dir,
            workers=arguments.workers,
            engine=Engine(arguments.engine, arguments.address),
            backend=arguments.backend,
            observer=observer,
        )

    return run


def make_parser() -> Parser:
    tables = "\n".join(f"  {name:<18} {experiment.title}" for name, experiment in EXPERIMENTS.items())
    parser = Parser(
        prog="sparsyedge bench paper",
        description="Run the experiment behind one table or figure of the paper, or resume it after an interruption, "
        f"and print our figures next to the paper's.\n\n{tables}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("table", choices=list(EXPERIMENTS), metavar="TABLE")
    parser.add_argument(
        "--scale", choices=list(SCALES), default="small", help="the paper's, or one for 2 cores (default: %(default)s)"
    )
    parser.add_argument(
        "--backend",
        choices=get_args(Backend),
        default="ort",
        help="what takes the steps: the graphs of the devices, or plain torch, on a GPU if any (default: %(default)s)",
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="the rows with this in their name")
    parser.add_argument("--seeds", type=int, choices=range(1, len(SEEDS) + 1), help="how many (default: the scale's)")
    parser.add_argument(
        "--seeds-vary",
        choices=("all", *get_args(SeedsVary)),
        default="all",
        help="what differs between seeds: initial weights, batch orders and cohorts, or the sampling of cohorts alone, "
        f"as in the paper; seed {OTHER_SEED} then decides the rest (default: %(default)s)",
    )
    parser.add_argument(
        "--codec", choices=get_args(Codec), help=f"how values travel, both ways (default: {DEFAULT_CODEC})"
    )
    parser.add_argument("--rounds", type=positive, help="in all runs (default: the experiment's, or the scale's)")
    parser.add_argument("--width", type=positive, help="channels of the first stage (default: the scale's)")
    parser.add_argument("--model", metavar="NAME", help="of images (default: the scale's)")
    parser.add_argument("--learning-rate", type=positive_number, help="in the first round (default: the scale's)")
    add_engine_arguments(parser)
    parser.add_argument("--data-dir", help="where data sets are (default: $SPARSYEDGE_DATA, then the user's cache)")
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("results/paper"),
        metavar="DIR",
        help="a JSON document per run, and the runs themselves in runs/ (default: %(default)s); "
        "--results benchmarks/results/paper reads the documents that come with the code",
    )
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw the table's figure to FILE.svg or FILE.png: losses and sparsity over rounds; of `communication`, "
        "accuracy against values exchanged; of `iou`, the overlap of all pairs of rounds; of `layers`, each layer",
    )
    parser.add_argument(
        "--estimate",
        action="store_true",
        help="run nothing; time a few steps of each row's method here and print the core-hours of its runs",
    )
    parser.add_argument(
        "--finished", action="store_true", help="run nothing; print the rows that have results, each with its seeds"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    return parser
