"""`sparsyedge bench attacks`: final accuracy of a fleet with hostile members, per aggregation rule.

Each run is a simulation with real agents, frames and coordinator. The seed determines initial weights, shares and batch
orders, so runs with one seed differ only in attack and rule. Each result has its own file; finished runs are not
repeated, and interrupted runs resume.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any, get_args

import msgspec
from rich.console import Console

from sparsyedge.benchmarks.attacks.result import NO_ATTACK, UNGUARDED, Result, Settings
from sparsyedge.benchmarks.attacks.tables import print_table, summary_of
from sparsyedge.benchmarks.common.machine import machine
from sparsyedge.benchmarks.common.number_arguments import positive, positive_number
from sparsyedge.benchmarks.common.presets import ALPHA, PRESETS
from sparsyedge.benchmarks.simulate import simulate
from sparsyedge.benchmarks.simulate.config import ExportConfig, SimulatedRunConfig, SimulationConfig
from sparsyedge.benchmarks.simulate.hostile_members import ATTACKS
from sparsyedge.benchmarks.simulate.shares import device_names
from sparsyedge.coordinator.aggregation_config import AggregationConfig, RuleName
from sparsyedge.coordinator.config import LearningRateConfig
from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.config import read_section
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.storage import write_atomically

__all__ = ["main", "make_parser"]

RULES: tuple[str, ...] = (UNGUARDED, *get_args(RuleName))


def main(argv: list[str]) -> int:
    """The command line of `sparsyedge bench attacks`."""
    arguments = make_parser().parse_args(argv)
    settings = Settings(
        devices=arguments.devices,
        hostile=arguments.hostile,
        rounds=arguments.rounds,
        width=arguments.width,
        learning_rate=arguments.learning_rate,
    )
    console = Console(stderr=arguments.json)
    if settings.hostile >= settings.devices:
        raise ConfigError(f"--hostile {settings.hostile} of --devices {settings.devices}: one must stay honest")
    results = []
    # Seed by seed: an interrupted benchmark then has every rule and attack for the seeds it finished.
    for seed in range(1, arguments.seeds + 1):
        for attack in arguments.attacks:
            for rule in arguments.rules:
                result = _result(settings, rule, attack, seed, arguments)
                results.append(result)
                console.print(f"seed {seed}, {attack}, {rule}: {result.test_accuracy:.2%}", highlight=False)
    if arguments.json:
        document = {"settings": msgspec.to_builtins(settings), **summary_of(results), "machine": machine()}
        print(json.dumps(document))
    else:
        print_table(console, results)
    return 0


def _result(settings: Settings, rule: str, attack: str, seed: int, arguments: argparse.Namespace) -> Result:
    """The result on disk, or the result of a new run."""
    path: Path = arguments.out / f"{rule}-{attack}-{seed}.json"
    if path.is_file():
        return _read(path, settings)
    started_s = time.monotonic()
    config = _run_config(settings, rule, attack, seed, arguments.out / "work")
    names = device_names(settings.devices)
    hostile = {} if attack == NO_ATTACK else dict.fromkeys(names[-settings.hostile :], attack)
    rounds = simulate(config, workers=arguments.workers, hostile=hostile).rounds
    assert rounds[-1].test_accuracy is not None
    result = Result(
        rule=rule,
        attack=attack,
        seed=seed,
        settings=settings,
        test_accuracy=rounds[-1].test_accuracy,
        global_sparsity=rounds[-1].global_sparsity,
        refused=sum(record.refused for record in rounds),
        model_id=rounds[-1].model_id,
        seconds=time.monotonic() - started_s,
    )
    write_atomically(path, msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    shutil.rmtree(config.run_path, ignore_errors=True)
    return result


def _read(path: Path, settings: Settings) -> Result:
    try:
        result = msgspec.json.decode(path.read_bytes(), type=Result)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is not a result of this benchmark: {error}; remove it or choose --out") from error
    if result.settings != settings:
        raise ConfigError(f"{path} was made with other settings; give the same ones again, or choose another --out")
    return result


def _run_config(settings: Settings, rule: str, attack: str, seed: int, work: Path) -> SimulatedRunConfig:
    preset = PRESETS["digits"]
    return SimulatedRunConfig(
        name=f"attacks-{rule}-{attack}-{seed}",
        artifacts=str(work / f"artifacts-{settings.width}-{seed}"),
        run_dir=str(work / f"{rule}-{attack}-{seed}"),
        dataset="digits",
        rounds=settings.rounds,
        epochs=preset.epochs,
        cohort_size=settings.devices,
        min_updates=1,
        learning_rate=LearningRateConfig(
            start=settings.learning_rate, end=min(settings.learning_rate, preset.last_learning_rate)
        ),
        seed=seed,
        eval_every=settings.rounds,
        # Without the table, a simulation trusts everything that devices send.
        aggregation=None if rule == UNGUARDED else read_section({"rule": rule}, AggregationConfig),
        simulation=SimulationConfig(
            devices=settings.devices,
            alpha=ALPHA,
            partition_seed=seed,
            meter="none",
            export=ExportConfig(width=settings.width, seed=seed),
        ),
    )


def _some_of(allowed: tuple[str, ...]) -> Any:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(name.strip() for name in text.split(","))
        for name in names:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"{name!r} is not allowed, allowed are {', '.join(allowed)}")
        return names

    return parse


def make_parser() -> Parser:
    """The options of `sparsyedge bench attacks`."""
    attacks = (NO_ATTACK, *ATTACKS)
    parser = Parser(
        prog="sparsyedge bench attacks",
        description="Accuracy of federated runs with hostile members on digits, by the rule that combines updates.",
        epilog="; ".join(f"{name}: {attack.summary}" for name, attack in ATTACKS.items()) + ".",
    )
    parser.add_argument(
        "--rules", type=_some_of(RULES), default=RULES, metavar="NAMES", help=f"some of {', '.join(RULES)}"
    )
    parser.add_argument(
        "--attacks", type=_some_of(attacks), default=attacks, metavar="NAMES", help=f"some of {', '.join(attacks)}"
    )
    parser.add_argument("--seeds", type=positive, default=5, help="runs of each (default: %(default)s)")
    parser.add_argument("--devices", type=positive, default=10, help="in each run (default: %(default)s)")
    parser.add_argument("--hostile", type=positive, default=2, help="of them (default: %(default)s)")
    parser.add_argument("--rounds", type=positive, default=20, help="of each run (default: %(default)s)")
    parser.add_argument(
        "--learning-rate", type=positive_number, default=0.5, help="in the first round (default: %(default)s)"
    )
    parser.add_argument("--width", type=positive, default=8, help="of ResNet-18 (default: %(default)s)")
    parser.add_argument("--workers", type=positive, help="processes (default: one per core)")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/attacks"), help="where results are kept (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    return parser
