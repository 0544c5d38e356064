"""`sparsyedge bench selection`: rounds, seconds and joules to a target accuracy, by how cohorts are chosen.

A mixed fleet of modelled boards (fleet.py) trains a perceptron on digits once per policy and seed, with the round
machinery of real runs. The model is small, because what counts here is who trains. Every run has its own directory, so
an interrupted benchmark resumes where it stopped.
"""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import msgspec

from sparsyedge.benchmarks.common.machine import machine
from sparsyedge.benchmarks.common.number_arguments import positive
from sparsyedge.benchmarks.common.paired import CONFIDENCE
from sparsyedge.benchmarks.selection.fleet import BOARDS
from sparsyedge.benchmarks.selection.result import Outcome, outcome_of, summary_of, table_of
from sparsyedge.benchmarks.simulate import simulate
from sparsyedge.benchmarks.simulate.config import ExportConfig, SimulatedRunConfig, SimulationConfig
from sparsyedge.coordinator.config import LearningRateConfig
from sparsyedge.coordinator.record.store import Store
from sparsyedge.coordinator.rounds.cohort import Policy
from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.model.methods import MethodConfig

__all__ = ["main", "make_parser"]

METHOD = MethodConfig(name="sparsyfed-no-act", sparsity=0.8)
"""A perceptron has too few weights for more, and too few inputs to prune any."""
EPOCHS, BATCH_SIZE = 3, 8
LEARNING_RATE = LearningRateConfig(start=0.2, end=0.05)
COMPARED: tuple[Policy, ...] = ("uniform", "round-robin", "energy", "fast", "data")


def main(argv: list[str]) -> int:
    """The command line of `sparsyedge bench selection`."""
    arguments = make_parser().parse_args(argv)
    outcomes: dict[Policy, list[Outcome]] = {policy: [] for policy in COMPARED}
    for seed in range(arguments.seeds):
        for policy in COMPARED:
            outcomes[policy].append(_outcome(arguments, policy, seed))
    if arguments.json:
        print(json.dumps(_document(arguments, outcomes), indent=1))
        return 0
    boards = ", ".join(f"{name} {board.step_s:g} s and {board.step_j:g} J" for name, board in BOARDS.items())
    print(f"to {arguments.target:g} % on digits; a training step, MODELLED: {boards}\n\n{table_of(outcomes)}")
    return 0


def _outcome(arguments: argparse.Namespace, policy: Policy, seed: int) -> Outcome:
    config = _config(arguments, policy, seed)
    summary = simulate(config, workers=arguments.workers)
    with closing(Store.open(config.run_path)) as store:
        phases = store.phase_records()
    return outcome_of(policy, seed, summary.rounds, phases, target=arguments.target)


def _config(arguments: argparse.Namespace, policy: Policy, seed: int) -> SimulatedRunConfig:
    return SimulatedRunConfig(
        name=f"{policy}-{seed}",
        artifacts=str(arguments.out / "artifacts"),
        run_dir=str(arguments.out / f"seed-{seed}" / policy),
        dataset="digits",
        rounds=arguments.rounds,
        epochs=EPOCHS,
        batch_size=BATCH_SIZE,
        cohort_size=arguments.cohort,
        learning_rate=LEARNING_RATE,
        method=METHOD,
        seed=seed,
        selection=policy,
        simulation=SimulationConfig(
            devices=arguments.devices,
            alpha=arguments.alpha,
            partition_seed=seed,
            meter="none",
            boards=BOARDS,
            export=ExportConfig(model="mlp", width=arguments.width),
        ),
    )


def _document(arguments: argparse.Namespace, outcomes: dict[Policy, list[Outcome]]) -> dict[str, object]:
    return {
        **{name: getattr(arguments, name) for name in ("target", "rounds", "devices", "cohort", "alpha", "width")},
        "kind": "modelled",
        "boards": msgspec.to_builtins(BOARDS),
        "confidence": CONFIDENCE,
        "selections": summary_of(outcomes),
        "runs": [asdict(outcome) for each in outcomes.values() for outcome in each],
        "machine": machine(),
    }


def make_parser() -> Parser:
    parser = Parser(
        prog="sparsyedge bench selection",
        description="Rounds, seconds and joules to a target accuracy by `selection`, for a fleet of Pi 3, 4 and 5 in "
        "equal parts. Seconds and joules are modelled, from a table; accuracy is trained.",
    )
    parser.add_argument("--target", type=float, default=85.0, help="percent of test images (default: %(default)s)")
    parser.add_argument("--rounds", type=positive, default=40, help="rounds of each run (default: %(default)s)")
    parser.add_argument("--devices", type=positive, default=30, help="devices of each run (default: %(default)s)")
    parser.add_argument("--cohort", type=positive, default=5, help="devices of each round (default: %(default)s)")
    parser.add_argument("--alpha", type=float, default=0.5, help="how alike data is (default: %(default)s)")
    parser.add_argument("--width", type=positive, default=32, help="units of a layer (default: %(default)s)")
    parser.add_argument("--seeds", type=positive, default=5, help="runs of each selection (default: %(default)s)")
    parser.add_argument("--workers", type=positive, help="processes (default: one per core)")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/selection"), help="where the runs are kept (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    return parser
