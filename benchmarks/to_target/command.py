"""`sparsyedge bench to-target`: what each method takes until the global model holds a target accuracy.

Each run is a simulation with real agents, trainer, frames, phases, aggregation and evaluation. The seed decides initial
weights, shares, cohorts and batch orders, so runs with one seed differ only in their method. Each result has its own
file; finished runs are not repeated, and interrupted runs resume.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from sparsyedge.benchmarks.common.machine import machine
from sparsyedge.benchmarks.common.number_arguments import positive, positive_number
from sparsyedge.benchmarks.common.presets import ALPHA, PRESETS
from sparsyedge.benchmarks.to_target.result import Result, Settings
from sparsyedge.benchmarks.to_target.runs import label_of, result_of
from sparsyedge.benchmarks.to_target.tables import print_table, summary_of
from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.device.energy import meter_names, open_meter
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.methods import METHODS, MethodConfig, make_method
from sparsyedge.edge.storage import write_atomically
from sparsyedge.edge.wire.codecs import CODECS, DEFAULT_CODEC

__all__ = ["main", "make_parser"]

METHODS_BY_DEFAULT = "dense,topk,sparsyfed"
DOCUMENT = "to-target.json"
MODEL = "resnet18-calm"
"""With the usual BatchNorm, methods whose zeros grow back do not train at high sparsities."""


def main(argv: list[str]) -> int:
    """The command line of `sparsyedge bench to-target`."""
    arguments = make_parser().parse_args(argv)
    settings, methods, workers = _settings(arguments), _methods(arguments.methods), _workers(arguments)
    console = Console(stderr=arguments.json)
    results = []
    # Seed by seed: an interrupted benchmark then has every method for the seeds it finished.
    for seed in range(1, arguments.seeds + 1):
        for method in methods:
            results.append(result_of(settings, method, seed, out=arguments.out, workers=workers))
            console.print(_line(results[-1]), highlight=False)
    document = {"settings": msgspec.to_builtins(settings), **summary_of(results), "machine": machine()}
    _keep(arguments.out, document | {"runs": msgspec.to_builtins(results)}, results)
    if arguments.json:
        print(json.dumps(document))
    else:
        print_table(console, results)
        console.print(f"kept      {arguments.out / DOCUMENT}, to-target.png, to-target.svg", highlight=False)
    return 0


def _line(result: Result) -> str:
    cost = result.cost
    if cost is None:
        rounds = f"within {len(result.points)} rounds"
        return f"seed {result.seed}, {result.method}: never held {rounds}, {result.best:.1%} at best"
    moved = (cost.bytes_down + cost.bytes_up) / 1e6
    return f"seed {result.seed}, {result.method}: held from round {cost.round} on, {moved:.2f} MB"


def _keep(out: Path, document: dict[str, Any], results: Sequence[Result]) -> None:
    # Imported here because matplotlib is slow to load.
    from sparsyedge.benchmarks.to_target.plot import draw

    write_atomically(out / DOCUMENT, json.dumps(document, indent=1).encode() + b"\n")
    for name, picture in draw(results).items():
        write_atomically(out / name, picture)


def _settings(arguments: argparse.Namespace) -> Settings:
    preset = PRESETS[arguments.dataset]
    start = arguments.learning_rate or preset.learning_rate
    cohort = arguments.cohort or arguments.devices
    if cohort > arguments.devices:
        raise ConfigError(f"--cohort has value {cohort}: there are --devices {arguments.devices}; ask for at most that")
    if arguments.rounds < 2:
        raise ConfigError("--rounds has value 1: a target is held when two evaluations reach it; allowed: 2 or more")
    return Settings(
        dataset=arguments.dataset,
        target=arguments.accuracy,
        devices=arguments.devices,
        cohort=cohort,
        rounds=arguments.rounds,
        epochs=arguments.epochs or preset.epochs,
        model=arguments.model,
        width=arguments.width,
        alpha=arguments.alpha,
        learning_rate=start,
        last_learning_rate=min(start, preset.last_learning_rate),
        codec=arguments.codec,
        meter=arguments.meter,
        threads=1,
    )


def _methods(text: str) -> list[MethodConfig]:
    methods = [_method(name.strip()) for name in text.split(",") if name.strip()]
    labels = [label_of(method) for method in methods]
    twice = [label for label in labels if labels.count(label) > 1]
    if not methods or twice:
        what = f"names {twice[0]} twice" if twice else "names no method"
        raise ConfigError(f"--methods {text!r} {what}; give some of {', '.join(METHODS)}, separated by commas")
    return methods


def _method(text: str) -> MethodConfig:
    """A method by `NAME` or `NAME@SPARSITY`; raises ConfigError if there is no such method or it cannot be sparse."""
    name, at, sparsity = text.partition("@")
    try:
        target = float(sparsity) if at else None
    except ValueError:
        raise ConfigError(f"--methods has {text!r}: {sparsity!r} is no sparsity; give a share from 0 to 1") from None
    try:
        make_method(name, **({} if target is None else {"sparsity": target}))
    except ConfigError as error:
        raise ConfigError(f"--methods has {text!r}: {error}") from error
    return MethodConfig(name=name, sparsity=target)


def _workers(arguments: argparse.Namespace) -> int | None:
    """One where a sensor measures: it would charge each device with what the others do at the same time."""
    meter = open_meter(arguments.meter)
    meter.stop()
    if meter.kind in ("modelled", "none"):
        workers: int | None = arguments.workers
        return workers
    if arguments.workers not in (None, 1):
        raise ConfigError(
            f"--workers has value {arguments.workers}: meter {meter.name} measures the whole machine, so one device "
            f"may train at a time; use --workers 1, or --meter cpu-model"
        )
    return 1


def _accuracy(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share of the test samples, above 0 and at most 1")
    return value


def make_parser() -> Parser:
    parser = Parser(
        prog="sparsyedge bench to-target",
        description="Measure what each method takes until the global model holds a target accuracy: rounds, seconds, "
        "joules and megabytes.",
        epilog="Started again with the same options, it goes on where it stopped.",
    )
    add = parser.add_argument
    add("--accuracy", type=_accuracy, default=0.9, metavar="A", help="the target, as a share (default: %(default)s)")
    add(
        "--methods",
        default=METHODS_BY_DEFAULT,
        metavar="NAME[@SPARSITY],...",
        help="of `sparsyedge methods`; the others are compared with the first (default: %(default)s)",
    )
    add("--dataset", choices=sorted(PRESETS), default="digits", help="(default: %(default)s)")
    add("--seeds", type=positive, default=3, help="runs per method (default: %(default)s)")
    add("--rounds", type=positive, default=20, help="at most, per run (default: %(default)s)")
    add("--devices", type=positive, default=4, help="devices in all (default: %(default)s)")
    add("--cohort", type=positive, help="devices per round (default: all)")
    add("--epochs", type=positive, help="local epochs per round (default: the data set's preset)")
    add("--model", default=MODEL, help="of the zoo; every method trains with the default (default: %(default)s)")
    add("--width", type=positive, default=8, help="channels of the first stage (default: %(default)s)")
    add("--alpha", type=positive_number, default=ALPHA, help="of the devices' label mix (default: %(default)s)")
    add("--learning-rate", type=positive_number, help="in the first round (default: the data set's preset)")
    add("--codec", choices=CODECS, default=DEFAULT_CODEC, help="of all methods, both ways (default: %(default)s)")
    add("--meter", default="cpu-model", help=f"energy: {', '.join(meter_names())} (default: %(default)s)")
    add("--workers", type=positive, help="processes (default: one per core; one if a sensor measures)")
    add("--out", type=Path, default=Path("runs/to-target"), help="results, document and plot (default: %(default)s)")
    add("--json", action="store_true", help="print one JSON document on stdout")
    return parser
