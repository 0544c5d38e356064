"""The command line of `sparsyedge bench arm`."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

from sparsyedge.benchmarks.arm.boards import BOARDS
from sparsyedge.benchmarks.arm.counts import KERNEL_SETS
from sparsyedge.benchmarks.arm.model import PARTS, LayerWork, board_s, layer_work, modelled_s, read_cycles
from sparsyedge.benchmarks.arm.plan import read_plan
from sparsyedge.benchmarks.common.machine import disturbance, instruction_set, machine
from sparsyedge.benchmarks.common.number_arguments import positive, share
from sparsyedge.benchmarks.step.profiles import PROFILES, everywhere, mask, profile_state
from sparsyedge.benchmarks.step.workload import LEARNING_RATE, Workload
from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.data import DATASETS
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.training.sparse_session import SparseSession

__all__ = ["main", "make_parser"]

BETA, SEED, BATCH = 1.25, 0, 16
CHECK_STEPS = 5
NOTE = (
    "MODELLED, not measured: convolutions alone, one core, llvm-mca's cycles times counted iterations, every load a "
    "hit in the first cache; memory at its published best"
)


def main(argv: list[str]) -> int:
    """Model a step on every board and print a table or, with --json, a document."""
    arguments = make_parser().parse_args(argv)
    if instruction_set() not in KERNEL_SETS:
        raise ConfigError(
            f"plans for {instruction_set()} are not those of NEON; set SPARSYEDGE_FORCE_ISA=avx2 and run it again"
        )
    with tempfile.TemporaryDirectory(prefix="sparsyedge-bench-") as folder:
        workload = _workload(arguments.profile, arguments.sparsity, arguments.width, Path(folder))
        plans = _PlannedSession(workload).plans()
        document = _boards([layer_work(name, plan, KERNEL_SETS["neon"]) for name, plan in plans.items()])
        if arguments.clock_ghz:
            work = [layer_work(name, plan, KERNEL_SETS["avx2"]) for name, plan in plans.items()]
            document["check"] = _check(work, workload, arguments.clock_ghz)
    print(json.dumps(document, indent=1) if arguments.json else _table(document))
    return 0


class _PlannedSession(SparseSession):
    """Our session, whose plans can be read."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload.artifacts, threads=1)
        self.load(workload.state)

    def plans(self) -> dict[str, Any]:
        """By layer."""
        return {
            name.removesuffix(".plan").removesuffix(".weight"): read_plan(plan)
            for name, plan in self._fixed.items()
            if name.endswith(".plan")
        }


def _workload(profile: str, sparsity: float | None, width: int, folder: Path) -> Workload:
    from sparsyedge.edge.model.checkpoint import read_initial_state
    from sparsyedge.edge.model.methods import make_method
    from sparsyedge.export.build import build_artifacts
    from sparsyedge.export.model_spec import ModelSpec

    spec = ModelSpec.for_data("resnet18", width, DATASETS["cifar10"].form)
    method = make_method("sparsyfed", sparsity=0.95, beta=BETA)
    artifacts, _ = build_artifacts(spec, method, folder / "artifacts", seed=SEED, check=lambda *made: None)
    initial, prunable = read_initial_state(artifacts), sorted(artifacts.manifest.prunable)
    if sparsity is None:
        state = profile_state(profile, initial, prunable, seed=SEED)
    else:
        state = mask(initial, prunable, everywhere(sparsity), seed=SEED)
    return Workload.draw(artifacts, state, batch=BATCH, threads=1, seed=SEED)


def _boards(work: list[LayerWork]) -> dict[str, Any]:
    cycles = read_cycles()
    boards = {}
    for board in BOARDS:
        layers = {
            one.name: {part: 1e3 * board_s(one, part, cycles[board.core], board) for part in PARTS} for one in work
        }
        boards[board.name] = {
            "kind": "modelled",
            "core": board.core,
            "clock_ghz": board.clock_ghz,
            "clock_source": board.clock_source,
            "memory_gb_s": board.memory_gb_s,
            "memory_source": board.memory_source,
            "layer_ms": layers,
            "convolutions_ms": sum(sum(parts.values()) for parts in layers.values()),
            "memory_ms": sum(one.bytes[part] for one in work for part in PARTS) / board.memory_gb_s / 1e6,
        }
    return {"note": NOTE, "boards": boards}


def _check(work: list[LayerWork], workload: Workload, clock_ghz: float) -> dict[str, Any]:
    """The same model on this machine's AVX2 kernels, beside the CPU time that they take."""
    from sparsyedge.benchmarks.step.phases import phase_ms

    phases = phase_ms(workload, steps=CHECK_STEPS)
    # Other work on the machine stretches the profiler's times, all alike, but not the step's CPU time.
    scale = _cpu_ms(workload) / sum(phases.values())
    measured = {part: scale * phases[part] for part in PARTS}
    cycles = read_cycles()["znver3"]
    modelled = {part: 1e3 * sum(modelled_s(one, part, cycles, clock_ghz, 1e9)[0] for one in work) for part in PARTS}
    return {
        "machine": machine(),
        "core": "znver3",
        "clock_ghz": clock_ghz,
        "modelled_ms": modelled,
        "measured_cpu_ms": measured,
        "modelled_of_measured": sum(modelled.values()) / sum(measured.values()),
        "notes": [note for note in (disturbance(1),) if note],
    }


def _cpu_ms(workload: Workload) -> float:
    """The least CPU time of a step."""
    session = _PlannedSession(workload)
    times = []
    for _ in range(CHECK_STEPS):
        start = time.process_time()
        session.train_step(workload.x, workload.y, LEARNING_RATE)
        times.append(time.process_time() - start)
    return 1e3 * min(times)


def _table(document: dict[str, Any]) -> str:
    boards = document["boards"]
    lines = [
        document["note"],
        "",
        f"| ms of a step, modelled | {' | '.join(boards)} |",
        "|---" * (1 + len(boards)) + "|",
    ]
    for layer in next(iter(boards.values()))["layer_ms"]:
        cells = [f"{sum(board['layer_ms'][layer].values()):.1f}" for board in boards.values()]
        lines.append(f"| {layer} | {' | '.join(cells)} |")
    for key, label in (("convolutions_ms", "all convolutions"), ("memory_ms", "of that, memory at its best")):
        lines.append(f"| {label} | {' | '.join(f'{board[key]:.0f}' for board in boards.values())} |")
    check = document.get("check")
    if check:
        pairs = [f"{part} {check['modelled_ms'][part]:.0f} of {check['measured_cpu_ms'][part]:.0f}" for part in PARTS]
        lines += ["", f"checked here with {check['core']} at {check['clock_ghz']} GHz, modelled of measured CPU ms: "]
        lines[-1] += f"{', '.join(pairs)}; in all {check['modelled_of_measured']:.0%}"
        lines += check["notes"]
    return "\n".join(lines)


def make_parser() -> Parser:
    parser = Parser(
        prog="sparsyedge bench arm",
        description="A step's convolutions on boards that are not at hand: modelled, never measured.",
        epilog="On x86 set SPARSYEDGE_FORCE_ISA=avx2, whose plans are NEON's.",
    )
    parser.add_argument("--profile", default="trained95", help=f"{', '.join(PROFILES)} or an .npz file")
    parser.add_argument(
        "--sparsity",
        type=share,
        metavar="S",
        help="instead of a profile: random zeros, this share of every prunable weight",
    )
    parser.add_argument("--width", type=positive, default=64, help="of the ResNet-18 (default: %(default)s)")
    parser.add_argument(
        "--clock-ghz", type=float, help="of this machine: also model its AVX2 kernels, and compare with their time"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser
