"""The command line of `sparsyedge bench device`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from sparsyedge.benchmarks.common.machine import disturbance
from sparsyedge.benchmarks.common.number_arguments import positive
from sparsyedge.benchmarks.device.board import fingerprint
from sparsyedge.benchmarks.device.measurement import Task, Turn
from sparsyedge.benchmarks.device.plots import draw, page
from sparsyedge.benchmarks.device.result import FORMAT, DeviceResult, summarise
from sparsyedge.benchmarks.device.suite_options import add_suite_arguments, check_no_suite, run_suite_options
from sparsyedge.benchmarks.device.tables import summary
from sparsyedge.benchmarks.step.profiles import PROFILES, global_sparsity, profile_state
from sparsyedge.benchmarks.step.workload import Workload
from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.data import DATASETS
from sparsyedge.edge.device.energy import meter_names, open_meter
from sparsyedge.edge.errors import ConfigError, TrainingError
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.checkpoint import read_initial_state
from sparsyedge.edge.storage import write_atomically

__all__ = ["main", "make_parser"]

# There and back: heat and slowdown over time then affect both models equally.
ORDER = ("dense", "sparse", "sparse", "dense")
BETA = 1.25
SEED = 0
START_LIMIT_S = 600.0
"""How long a small board may take to load a model, on top of training."""


def main(argv: list[str]) -> int:
    """Measure this board, save JSON, HTML and PNG, and print a table or, with --json, the document."""
    arguments = make_parser().parse_args(argv)
    if arguments.suite is not None:
        return run_suite_options(arguments)
    check_no_suite(arguments)
    # Fail on a missing meter now rather than after the export.
    open_meter(arguments.meter).stop()
    with tempfile.TemporaryDirectory(prefix="sparsyedge-bench-") as folder:
        result = _measure(arguments, Path(folder))
    document = msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n"
    if arguments.out is not None:
        _keep([result], arguments.out, document)
    print(document.decode() if arguments.json else summary(result))
    return 0


def _measure(arguments: argparse.Namespace, folder: Path) -> DeviceResult:
    artifacts = _artifacts(arguments, folder)
    initial = read_initial_state(artifacts)
    prunable = sorted(artifacts.manifest.prunable)
    states = {"dense": initial, "sparse": profile_state(arguments.profile, initial, prunable, seed=SEED)}
    for name, state in states.items():
        workload = Workload.draw(artifacts, state, batch=arguments.batch, threads=arguments.threads, seed=SEED)
        workload.save(folder / f"{name}.npz")
    machine = fingerprint()
    turns: dict[str, list[Turn]] = {name: [] for name in states}
    for name in ORDER:
        task = Task(
            artifacts=str(artifacts.directory),
            workload=str(folder / f"{name}.npz"),
            threads=arguments.threads,
            seconds=arguments.minutes * 60 / len(ORDER),
            meter=arguments.meter,
            idle_s=arguments.idle_s,
        )
        turns[name].append(_turn(task))
    disturbed = disturbance(arguments.threads)
    last = turns["sparse"][-1]
    idle = [turn.idle_w for all_turns in turns.values() for turn in all_turns if turn.idle_w is not None]
    return DeviceResult(
        format=FORMAT,
        made_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        machine=machine,
        settings={
            "model": f"resnet18 width {arguments.width}" if arguments.artifacts is None else str(arguments.artifacts),
            "profile": arguments.profile,
            "batch": arguments.batch,
            "threads": arguments.threads,
            "round_samples": arguments.round_samples,
            "minutes": arguments.minutes,
        },
        energy_source=last.energy_source,
        energy_kind=last.energy_kind,
        energy_hz=last.energy_hz,
        idle_w=sum(idle) / len(idle) if idle else None,
        meter_overhead=last.meter_overhead,
        models={
            name: summarise(
                turns[name], sparsity=global_sparsity(state, prunable), round_samples=arguments.round_samples
            )
            for name, state in states.items()
        },
        notes=[disturbed] if disturbed else [],
    )


def _turn(task: Task) -> Turn:
    command = [sys.executable, "-m", "sparsyedge.benchmarks.device.measurement", msgspec.json.encode(task).decode()]
    # Otherwise numpy's threads would count as ours.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    limit_s = task.seconds + task.idle_s + START_LIMIT_S
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, env=environment)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise TrainingError(f"the process that trains ended with code {done.returncode}: {reason}")
    return msgspec.json.decode(done.stdout.strip().splitlines()[-1], type=Turn)


def _artifacts(arguments: argparse.Namespace, folder: Path) -> Artifacts:
    if arguments.artifacts is not None:
        return Artifacts.load(arguments.artifacts)
    try:
        from sparsyedge.edge.model.methods import make_method
        from sparsyedge.export.build import build_artifacts
        from sparsyedge.export.model_spec import ModelSpec
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"this board cannot export a model without {error.name}; run `sparsyedge export --dataset cifar10 --out "
            f"DIR` elsewhere, copy DIR here and add `--artifacts DIR`"
        ) from error
    spec = ModelSpec.for_data("resnet18", arguments.width, DATASETS["cifar10"].form)
    method = make_method("sparsyfed", sparsity=0.95, beta=BETA)
    artifacts, _ = build_artifacts(spec, method, folder / "artifacts", seed=SEED, check=lambda *made: None)
    return artifacts


def _keep(results: list[DeviceResult], out: Path, document: bytes) -> None:
    picture = draw(results)
    write_atomically(out / "device.json", document)
    write_atomically(out / "device.html", page(results, picture).encode())
    if picture is not None:
        write_atomically(out / "device.png", picture)


def _minutes(text: str) -> float:
    minutes = float(text)
    if not 0 <= minutes <= 24 * 60:
        raise argparse.ArgumentTypeError(f"{text} minutes; allowed are more than 0 and at most 1440; 0 with --suite")
    return minutes


def make_parser() -> Parser:
    parser = Parser(prog="sparsyedge bench device", description="What training costs this board, dense against sparse.")
    parser.add_argument(
        "--minutes",
        type=_minutes,
        default=4.0,
        metavar="M",
        help="of training; of a suite, for each workload, and 0 for --batches alone (default: %(default)g)",
    )
    parser.add_argument("--meter", default="auto", help=f"energy: {', '.join(meter_names())} (default: %(default)s)")
    parser.add_argument("--idle-s", type=float, default=5.0, metavar="S", help="for the idle baseline of each turn")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="keep device.json (of a suite: suite.json), a page and a picture there"
    )
    parser.add_argument("--json", action="store_true", help="print the JSON document instead of the table")
    parser.add_argument("--artifacts", type=Path, metavar="DIR", help="an exported model (default: export one here)")
    parser.add_argument("--width", type=positive, default=64, help="of the ResNet-18 (default: %(default)s)")
    parser.add_argument(
        "--profile",
        default="trained95",
        help=f"sparsity: {', '.join(PROFILES)}, or a trained model: a finished run's folder, its model.frame, an .npz "
        "file",
    )
    parser.add_argument("--batch", type=positive, default=16, help="samples per step (default: %(default)s)")
    parser.add_argument("--round-samples", type=positive, default=500, help="of one round (default: %(default)s)")
    parser.add_argument("--threads", type=positive, default=len(os.sched_getaffinity(0)), help="default: all cores")
    add_suite_arguments(parser)
    return parser
