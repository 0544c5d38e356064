"""`sparsyedge bench codecs`: how much accuracy each codec costs, on federated runs paired over seeds.

Each run is a simulation with real agents, trainer, frames, aggregation and global model, but no broker. The seed
determines initial weights, cohorts and batch orders, so runs with one seed differ only in their codec. Each result has
its own file; finished runs are not repeated, and interrupted runs resume.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from sparsyedge.benchmarks.common.machine import machine
from sparsyedge.benchmarks.common.number_arguments import positive, positive_number
from sparsyedge.benchmarks.common.paired import Interval, paired_difference
from sparsyedge.benchmarks.simulate import simulate
from sparsyedge.benchmarks.simulate.config import ExportConfig, SimulatedRunConfig, SimulationConfig
from sparsyedge.coordinator.config import LearningRateConfig
from sparsyedge.coordinator.record.records import RunSummary
from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.data import DATASETS
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.methods import MethodConfig
from sparsyedge.edge.storage import write_atomically
from sparsyedge.edge.wire.codecs import CODECS, DEFAULT_CODEC, LOSSLESS, Codec

__all__ = ["Result", "Settings", "default_codec", "main", "make_parser", "verdict"]

METHOD = "sparsyfed"
ALLOWED_POINTS = 0.5
WITHIN = f"within {ALLOWED_POINTS} points"
EQUAL = "not distinguishable"
WORSE = "worse"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that all runs share; results with other settings are refused."""

    dataset: str
    devices: int
    cohort: int
    rounds: int
    width: int
    sparsity: float
    alpha: float
    learning_rate: float
    last_learning_rate: float


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    codec: Codec
    seed: int
    settings: Settings
    test_accuracy: float
    test_loss: float
    global_sparsity: float
    bytes_down: int
    bytes_up: int
    nonzeros_down: int
    nonzeros_up: int
    dense_bytes: int
    """The bytes of as many dense models, each way."""
    model_id: str
    machine: dict[str, Any]


def main(argv: list[str]) -> int:
    """The command line of `sparsyedge bench codecs`."""
    arguments = make_parser().parse_args(argv)
    settings = _settings(arguments)
    console = Console(stderr=arguments.json)
    results: list[Result] = []
    for seed in range(1, arguments.seeds + 1):
        for codec in CODECS:
            result = _result(settings, codec, seed, arguments)
            results.append(result)
            console.print(f"seed {seed}, {codec}: accuracy {result.test_accuracy:.2%}", highlight=False)
    if arguments.json:
        print(json.dumps(_document(settings, results)))
    else:
        _print(console, results)
    return 0


# ---- runs ------------------------------------------------------------------------------------------------------------


def _result(settings: Settings, codec: Codec, seed: int, arguments: argparse.Namespace) -> Result:
    """The result on disk, or the result of a new run."""
    path: Path = arguments.out / f"{codec}-{seed}.json"
    if path.is_file():
        try:
            result = msgspec.json.decode(path.read_bytes(), type=Result)
        except msgspec.DecodeError as error:
            raise ConfigError(
                f"{path} is not a result of this benchmark: {error}; remove it or choose --out"
            ) from error
        if result.settings != settings:
            raise ConfigError(f"{path} was made with other settings; give the same ones again, or choose another --out")
        return result
    config = _run_config(settings, codec, seed, arguments)
    summary = simulate(config, workers=arguments.workers)
    result = _summarize(settings, codec, seed, summary)
    write_atomically(path, msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    shutil.rmtree(config.run_path, ignore_errors=True)
    return result


def _run_config(settings: Settings, codec: Codec, seed: int, arguments: argparse.Namespace) -> SimulatedRunConfig:
    work = arguments.out / "work"
    return SimulatedRunConfig(
        name=f"codecs-{codec}-{seed}",
        artifacts=str(work / f"artifacts-{seed}"),
        run_dir=str(work / f"{codec}-{seed}"),
        dataset=settings.dataset,
        data_dir=arguments.data_dir,
        rounds=settings.rounds,
        cohort_size=settings.cohort,
        codec=codec,
        learning_rate=LearningRateConfig(start=settings.learning_rate, end=settings.last_learning_rate),
        eval_every=settings.rounds,
        method=MethodConfig(name=METHOD, sparsity=settings.sparsity),
        seed=seed,
        simulation=SimulationConfig(
            devices=settings.devices,
            alpha=settings.alpha,
            meter="none",
            export=ExportConfig(width=settings.width, seed=seed),
        ),
    )


def _summarize(settings: Settings, codec: Codec, seed: int, summary: RunSummary) -> Result:
    rounds = summary.rounds
    last = rounds[-1]
    assert last.test_accuracy is not None
    assert last.test_loss is not None
    return Result(
        codec=codec,
        seed=seed,
        settings=settings,
        test_accuracy=last.test_accuracy,
        test_loss=last.test_loss,
        global_sparsity=last.global_sparsity,
        bytes_down=sum(record.bytes_down for record in rounds),
        bytes_up=sum(record.bytes_up for record in rounds),
        nonzeros_down=sum(record.nonzeros_down for record in rounds),
        nonzeros_up=sum(record.nonzeros_up for record in rounds),
        dense_bytes=sum(record.dense_bytes * record.updates for record in rounds),
        model_id=summary.run.model_id,
        machine=machine(),
    )


# ---- verdicts --------------------------------------------------------------------------------------------------------


def verdict(points: Interval) -> str:
    """The verdict on a codec, from the interval of its accuracy minus lossless, in points."""
    if points.low >= -ALLOWED_POINTS:
        return WITHIN
    return EQUAL if points.has_zero else WORSE


def default_codec(results: Sequence[Result]) -> Codec:
    """The codec with the fewest bytes among those without a measurable loss of accuracy."""
    passed = [codec for codec in CODECS if codec == LOSSLESS or verdict(_points(results, codec)) != WORSE]
    return min(passed, key=lambda codec: sum(r.bytes_down + r.bytes_up for r in results if r.codec == codec))


def _points(results: Sequence[Result], codec: Codec) -> Interval:
    by_codec: Mapping[Codec, list[float]] = {
        name: [100 * result.test_accuracy for result in results if result.codec == name] for name in (codec, LOSSLESS)
    }
    return paired_difference(by_codec[codec], by_codec[LOSSLESS])


def _document(settings: Settings, results: Sequence[Result]) -> dict[str, Any]:
    codecs: dict[str, Any] = {}
    for codec in CODECS:
        runs = [result for result in results if result.codec == codec]
        codecs[codec] = {
            "test_accuracy": [result.test_accuracy for result in runs],
            "bytes": [result.bytes_down + result.bytes_up for result in runs],
            "ratio_down": _ratio(runs, "down"),
            "ratio_up": _ratio(runs, "up"),
        }
        if codec != LOSSLESS:
            points = _points(results, codec)
            ends = [end if math.isfinite(end) else None for end in (points.low, points.high)]
            codecs[codec] |= {"points": points.mean, "interval": ends, "verdict": verdict(points)}
    return {
        "settings": msgspec.to_builtins(settings),
        "seeds": sorted({result.seed for result in results}),
        "codecs": codecs,
        "smallest_that_passes": default_codec(results),
        "default": DEFAULT_CODEC,
        "machine": machine(),
    }


def _ratio(runs: Sequence[Result], way: Literal["down", "up"]) -> float:
    """Dense bytes divided by bytes sent, one way."""
    sent = sum(run.bytes_down if way == "down" else run.bytes_up for run in runs)
    return sum(run.dense_bytes for run in runs) / sent


def _print(console: Console, results: Sequence[Result]) -> None:
    table = Table(title="accuracy by codec, paired with lossless", title_justify="left", box=box.SIMPLE_HEAD)
    table.padding = (0, 1, 0, 0)
    for heading in ("codec", "accuracy", "down", "up", "points (95 % interval)", "verdict"):
        table.add_column(heading, justify="left" if heading in ("codec", "verdict") else "right", no_wrap=True)
    for codec in CODECS:
        runs = [result for result in results if result.codec == codec]
        points = _points(results, codec)
        lossless = codec == LOSSLESS
        table.add_row(
            codec,
            f"{statistics.mean(run.test_accuracy for run in runs):.2%}",
            f"{_ratio(runs, 'down'):.1f}x",
            f"{_ratio(runs, 'up'):.1f}x",
            "-" if lossless else f"{points.mean:+.2f} ({points.low:+.2f}..{points.high:+.2f})",
            "-" if lossless else verdict(points),
        )
    console.print(table)
    console.print(
        f"{len(results) // len(CODECS)} seeds; smallest codec that passes: {default_codec(results)} "
        f"(the default is {DEFAULT_CODEC})",
        highlight=False,
    )


# ---- the command line ------------------------------------------------------------------------------------------------


def _settings(arguments: argparse.Namespace) -> Settings:
    return Settings(
        dataset=arguments.dataset,
        devices=arguments.devices,
        cohort=arguments.cohort,
        rounds=arguments.rounds,
        width=arguments.width,
        sparsity=arguments.sparsity,
        alpha=arguments.alpha,
        learning_rate=arguments.learning_rate,
        last_learning_rate=min(arguments.learning_rate, arguments.last_learning_rate),
    )


def make_parser() -> Parser:
    parser = Parser(
        prog="sparsyedge bench codecs",
        description="Measure what each codec costs in accuracy: federated runs, paired over seeds, full test set.",
    )
    parser.add_argument("--dataset", choices=sorted(DATASETS), default="cifar10")
    parser.add_argument("--data-dir", help="where the data set is (default: $SPARSYEDGE_DATA, then the user's cache)")
    parser.add_argument("--seeds", type=positive, default=5, help="runs per codec (default: %(default)s)")
    parser.add_argument("--rounds", type=positive, default=20, help="(default: %(default)s)")
    parser.add_argument("--cohort", type=positive, default=5, help="devices per round (default: %(default)s)")
    parser.add_argument("--devices", type=positive, default=100, help="devices in all (default: %(default)s)")
    parser.add_argument("--width", type=positive, default=8, help="of ResNet-18 (default: %(default)s)")
    parser.add_argument("--sparsity", type=float, default=0.95, help="(default: %(default)s)")
    parser.add_argument(
        "--alpha", type=positive_number, default=1.0, help="of the devices' label mix (default: %(default)s)"
    )
    parser.add_argument(
        "--learning-rate", type=positive_number, default=0.5, help="in the first round (default: %(default)s)"
    )
    parser.add_argument(
        "--last-learning-rate", type=positive_number, default=0.01, help="in the last (default: %(default)s)"
    )
    parser.add_argument("--workers", type=positive, help="processes (default: one per core)")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/codecs"), help="where results are kept (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    return parser
