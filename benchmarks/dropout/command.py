"""`sparsyedge bench dropout`: how much accuracy a run loses when devices take a task and then disappear.

For each seed we run the demo's task twice with the round machinery of real runs: once with all devices, and once losing
a random share of them in every round. The differences give an interval. Every run has its own directory, so an
interrupted benchmark resumes where it stopped.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from sparsyedge.benchmarks.common.number_arguments import positive
from sparsyedge.benchmarks.common.paired import CONFIDENCE, Interval, paired_difference
from sparsyedge.benchmarks.common.presets import ALPHA, PRESETS
from sparsyedge.benchmarks.simulate.config import ExportConfig, SimulatedRunConfig, SimulationConfig
from sparsyedge.benchmarks.simulate.hub import Drop
from sparsyedge.benchmarks.simulate.simulation import simulate
from sparsyedge.coordinator.config import LearningRateConfig
from sparsyedge.coordinator.record.records import RunSummary
from sparsyedge.coordinator.record.store import STORE_NAME, Store
from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.errors import RunError

__all__ = ["Pair", "lost", "main", "make_parser"]


@dataclass(frozen=True)
class Pair:
    """One seed's test accuracy after the last round, in percent: with all devices, and with losses."""

    seed: int
    complete: float
    dropout: float
    updates_lost: int


def main(argv: list[str]) -> int:
    """The command line of `sparsyedge bench dropout`."""
    arguments = make_parser().parse_args(argv)
    pairs = []
    for seed in range(arguments.seeds):
        pairs.append(_pair(arguments, seed))
        print(f"seed {seed}: {pairs[-1]}", file=sys.stderr, flush=True)
    difference = paired_difference([pair.dropout for pair in pairs], [pair.complete for pair in pairs])
    if arguments.json:
        print(json.dumps(_document(arguments, pairs, difference)))
    else:
        _print(arguments, pairs, difference)
    return 0


def lost(seed: int, devices: tuple[str, ...], share: float) -> Drop:
    """Choose which devices each round loses: every device with the same chance, but never all of them."""

    def lot(round_number: int, device: str) -> float:
        digest = hashlib.sha256(f"dropout/{seed}/{round_number}/{device}".encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64

    def drop(round_number: int, device: str) -> bool:
        luckiest = max(devices, key=lambda other: lot(round_number, other))
        return lot(round_number, device) < share and device != luckiest

    return drop


def _pair(arguments: argparse.Namespace, seed: int) -> Pair:
    complete = _run(arguments, seed, "complete", None)
    devices = tuple(record.id for record in complete.devices)
    dropout = _run(arguments, seed, "dropout", lost(seed, devices, arguments.dropout))
    expected = arguments.rounds * arguments.devices
    return Pair(
        seed=seed,
        complete=_accuracy(complete),
        dropout=_accuracy(dropout),
        updates_lost=expected - sum(record.updates for record in dropout.rounds),
    )


def _run(arguments: argparse.Namespace, seed: int, name: str, drop: Drop | None) -> RunSummary:
    config = _config(arguments, seed, name)
    if (config.run_path / STORE_NAME).is_file():
        with closing(Store.open(config.run_path)) as store:
            if store.run().state == "finished":
                return store.summary()
    return simulate(config, workers=arguments.workers, drop=drop)


def _config(arguments: argparse.Namespace, seed: int, name: str) -> SimulatedRunConfig:
    preset = PRESETS["digits"]
    folder = arguments.out / f"seed-{seed}"
    return SimulatedRunConfig(
        name=f"{name}-{seed}",
        artifacts=str(folder / "artifacts"),
        run_dir=str(folder / name),
        dataset="digits",
        rounds=arguments.rounds,
        epochs=preset.epochs,
        cohort_size=arguments.devices,
        min_updates=1,
        learning_rate=LearningRateConfig(start=preset.learning_rate, end=preset.last_learning_rate),
        seed=seed,
        eval_every=arguments.rounds,
        simulation=SimulationConfig(
            devices=arguments.devices,
            alpha=ALPHA,
            partition_seed=seed,
            meter="none",
            export=ExportConfig(width=arguments.width, seed=seed),
        ),
    )


def _accuracy(summary: RunSummary) -> float:
    accuracy = summary.rounds[-1].test_accuracy
    if accuracy is None:
        raise RunError(f"the run in {summary.run_dir} was not evaluated; remove it and start again")
    return 100 * accuracy


def _document(arguments: argparse.Namespace, pairs: list[Pair], difference: Interval) -> dict[str, object]:
    return {
        "rounds": arguments.rounds,
        "devices": arguments.devices,
        "width": arguments.width,
        "dropout": arguments.dropout,
        "pairs": [asdict(pair) for pair in pairs],
        "difference_points": difference.mean,
        "interval_points": None if len(pairs) < 2 else [difference.low, difference.high],
        "confidence": CONFIDENCE,
    }


def _print(arguments: argparse.Namespace, pairs: list[Pair], difference: Interval) -> None:
    for pair in pairs:
        print(
            f"seed {pair.seed}: {pair.complete:.2f} % with all devices, {pair.dropout:.2f} % with "
            f"{arguments.dropout:.0%} lost ({pair.updates_lost} of {arguments.rounds * arguments.devices} updates)"
        )
    ends = "" if len(pairs) < 2 else f", 95 % interval {difference.low:+.2f} to {difference.high:+.2f}"
    print(f"difference: {difference.mean:+.2f} points{ends} ({len(pairs)} pairs)")


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not allowed, allowed are 0 up to but not including 1")
    return value


def make_parser() -> Parser:
    parser = Parser(
        prog="sparsyedge bench dropout",
        description="Accuracy with and without devices that are lost in every round, paired over seeds.",
    )
    parser.add_argument("--dropout", type=_share, default=0.3, help="share of devices lost (default: %(default)s)")
    parser.add_argument("--rounds", type=positive, default=30, help="rounds of each run (default: %(default)s)")
    parser.add_argument("--devices", type=positive, default=10, help="devices of each run (default: %(default)s)")
    parser.add_argument("--width", type=positive, default=16, help="channels of the first stage (default: %(default)s)")
    parser.add_argument("--seeds", type=positive, default=5, help="pairs of runs (default: %(default)s)")
    parser.add_argument("--workers", type=positive, help="processes (default: one per core)")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/dropout"), help="where the runs are kept (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    return parser
