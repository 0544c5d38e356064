"""The command line of `sparsyedge bench step`."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from sparsyedge.benchmarks.common.machine import cap_peers, disturbance, instruction_set, machine
from sparsyedge.benchmarks.common.number_arguments import positive, share
from sparsyedge.benchmarks.step.contestants import CONTESTANTS, OURS, Variant, open_contestants
from sparsyedge.benchmarks.step.measure import Timing, compare_losses, measure
from sparsyedge.benchmarks.step.memory import peak_mb
from sparsyedge.benchmarks.step.profiles import (
    PROFILES,
    check_profile,
    everywhere,
    global_sparsity,
    mask,
    profile_state,
)
from sparsyedge.benchmarks.step.tables import StepResult, as_json, print_result
from sparsyedge.benchmarks.step.workload import Workload
from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.data import DATASETS
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.tensors import State

__all__ = ["main", "make_parser"]

PEERS = tuple(name for name in CONTESTANTS if name != OURS)
# Contestants that train with the method; the others train dense weights or a fixed mask.
OF_THE_METHOD = (OURS, "ort_stock", "torch_sparsyfed")
BETA = 1.25
PHASE_STEPS = 5
USUAL_DATA = {"ds_cnn": "speech_commands_mel"}
"""By model; all others get CIFAR-10's images."""


def main(argv: list[str]) -> int:
    """Measure and print; with --json one document on stdout."""
    arguments = make_parser().parse_args(argv)
    names = (OURS, *_peers(arguments.peers))
    limit = cap_peers()
    with tempfile.TemporaryDirectory(prefix="sparsyedge-bench-") as folder:
        workload, initial = _workload(arguments, Path(folder) / "artifacts")
        result = _run(arguments, names, workload, [limit] if limit else [])
        if arguments.dense:
            result = replace(
                result, dense_ms=_dense_ms(workload, initial, Path(folder) / "stock", steps=arguments.steps)
            )
    if arguments.json:
        print(as_json(result))
    else:
        print_result(Console(), result)
    return 0


def _run(arguments: argparse.Namespace, names: Sequence[str], workload: Workload, notes: list[str]) -> StepResult:
    contestants, unavailable = open_contestants(names, workload)
    notes += [f"{name} unavailable: {reason}" for name, reason in unavailable.items()]
    timings = measure(contestants, steps=arguments.steps)
    disturbed = disturbance(arguments.threads)
    notes += [disturbed] if disturbed else []
    best = _fastest(timings, notes)
    notes += compare_losses({name: timings[variant].losses for name, variant in best.items()}, method=OF_THE_METHOD)
    # Free the contestants' memory before measuring other processes.
    contestants.clear()
    medians = {name: timings[best[name]].median_ms if name in best else None for name in names}
    return StepResult(
        profile=_workload_name(arguments),
        threads=arguments.threads,
        isa=instruction_set(),
        global_sparsity=global_sparsity(workload.state, workload.artifacts.manifest.prunable),
        median_ms=medians,
        min_ms={name: timings[best[name]].min_ms if name in best else None for name in names},
        speedup={name: _ratio(medians[name], medians[OURS]) for name in names if name != OURS},
        phase_ms=_phase_ms(workload) if OURS in best else {},
        peak_mb=_peak_mb(names, best, workload) if arguments.memory else {},
        machine=machine(),
        notes=tuple(notes),
        update_bytes=_update_bytes(workload) if OURS in best else {},
    )


def _workload(arguments: argparse.Namespace, folder: Path) -> tuple[Workload, State]:
    """Export the model and draw the workload; also returns the weights before the profile zeroes some."""
    # Here and not above: torch reads the limits of cap_peers when it is imported.
    from sparsyedge.edge.model.checkpoint import read_initial_state
    from sparsyedge.edge.model.methods import make_method
    from sparsyedge.export.build import build_artifacts
    from sparsyedge.export.model_spec import ModelChoices, ModelSpec

    spec = ModelSpec.for_data(arguments.model, arguments.width, DATASETS[_dataset(arguments)].form)
    if arguments.sparsity is None:
        check_profile(arguments.profile)
    method = make_method("sparsyfed", sparsity=0.95, beta=BETA)
    # `sparsyedge export` checks the graphs against torch; here we compare losses instead.
    artifacts, _ = build_artifacts(
        spec,
        method,
        folder,
        seed=arguments.seed,
        check=lambda *made: None,
        choices=ModelChoices(train=arguments.train),
    )
    initial, prunable = read_initial_state(artifacts), sorted(artifacts.manifest.prunable)
    if arguments.sparsity is None:
        state = profile_state(arguments.profile, initial, prunable, seed=arguments.seed)
    else:
        state = mask(initial, prunable, everywhere(arguments.sparsity), seed=arguments.seed)
    batch = {"batch": arguments.batch, "threads": arguments.threads, "seed": arguments.seed}
    return Workload.draw(artifacts, state, **batch), initial


def _dataset(arguments: argparse.Namespace) -> str:
    """The data set whose form the model gets: the named one, or the usual one for it."""
    name: str = arguments.dataset or USUAL_DATA.get(arguments.model, "cifar10")
    if name not in DATASETS:
        raise ConfigError(f"no data set {name!r}; there are: {', '.join(DATASETS)}")
    return name


def _workload_name(arguments: argparse.Namespace) -> str:
    if arguments.sparsity is None:
        name = str(arguments.profile)
    else:
        name = f"{arguments.model}, {arguments.sparsity:.1%} of each layer"
    return name if arguments.train == "all" else f"{name}, train {arguments.train}"


def _fastest(timings: dict[Variant, Timing], notes: list[str]) -> dict[str, Variant]:
    """The variant with the lowest median for each contestant, and notes on the alternatives."""
    best: dict[str, Variant] = {}
    for name in CONTESTANTS:
        variants = sorted((v for v in timings if v.contestant == name), key=lambda v: timings[v].median_ms)
        if variants:
            best[name] = variants[0]
        if len(variants) > 1:
            listed = ", ".join(f"{v.label} {timings[v].median_ms:.1f} ms" for v in variants)
            notes.append(f"{name} is the better of {listed}")
    return best


def _phase_ms(workload: Workload) -> dict[str, float]:
    from sparsyedge.benchmarks.step.phases import phase_ms

    return phase_ms(workload, steps=PHASE_STEPS)


def _update_bytes(workload: Workload) -> dict[str, int]:
    from sparsyedge.benchmarks.step.update_bytes import update_bytes

    return update_bytes(workload)


def _dense_ms(workload: Workload, initial: State, folder: Path, *, steps: int) -> Mapping[str, float]:
    from sparsyedge.benchmarks.step.dense_round import dense_round_ms

    return dense_round_ms(workload, initial, folder, steps=steps)


def _peak_mb(names: Sequence[str], best: dict[str, Variant], workload: Workload) -> dict[str, float | None]:
    return {name: peak_mb(best[name], workload) if name in best else None for name in names}


def _ratio(peer_ms: float | None, our_ms: float | None) -> float | None:
    return None if peer_ms is None or our_ms is None else peer_ms / our_ms


def _peers(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise ConfigError(f"no peer {unknown[0]!r}; there are: {', '.join(PEERS)}")
    return [name for name in PEERS if name in names]


def make_parser() -> Parser:
    parser = Parser(
        prog="sparsyedge bench step",
        description="Time one SGD step of a model in fp32, ours and its peers in turns.",
        epilog="SPARSYEDGE_FORCE_ISA=avx2 holds our ops and torch to AVX2.",
    )
    add = parser.add_argument
    profiles = ", ".join(PROFILES)
    add(
        "--profile",
        default="trained95",
        help=f"{profiles}, or a trained model: the folder of a finished run, its model.frame, or an .npz file with a "
        "state (default: %(default)s)",
    )
    add("--model", default="resnet18", help="of the zoo; the named profiles are ResNet-18's (default: %(default)s)")
    add("--sparsity", type=share, help="instead of a profile: random zeros, this share of every prunable weight")
    add(
        "--train",
        default="all",
        metavar="all|last:N|PATTERN",
        help="which parameters train, as in `sparsyedge export`; the others are frozen for all contestants",
    )
    add("--dataset", help="a data set whose shape the model gets (default: cifar10; ds_cnn: speech_commands_mel)")
    add("--threads", type=positive, default=1, help="of every contestant (default: %(default)s)")
    add("--steps", type=positive, default=20, help="measured per contestant (default: %(default)s)")
    add("--peers", default=",".join(PEERS), help="which of %(default)s, separated by commas (default: all)")
    add("--memory", action="store_true", help="also weigh every contestant's memory over 20 steps, in its own process")
    add(
        "--dense",
        action="store_true",
        help="also time round 1, from dense weights, beside the same graph without our ops",
    )
    add("--width", type=positive, default=64, help="channels of the first stage (default: %(default)s)")
    add("--batch", type=positive, default=16, help="samples per step (default: %(default)s)")
    add("--seed", type=int, default=0, help="of weights, masks and batch (default: %(default)s)")
    add("--json", action="store_true", help="print one JSON document on stdout")
    return parser
