"""`sparsyedge bench runtime`: a training step in a plain session, as any onnxruntime runs it, against the training API.

Shows what a device loses without onnxruntime-training. Both take turns in one process, from dense weights (round 1)
and from pruned ones (every later round). Either runtime trains a pruned model in the plain session.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

from sparsyedge.benchmarks.common.machine import cap_peers, disturbance, instruction_set, machine
from sparsyedge.benchmarks.common.number_arguments import positive
from sparsyedge.benchmarks.runtime.resnet import SPARSITY, export_resnet
from sparsyedge.benchmarks.step.measure import measure
from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.tensors import FloatArray, State

__all__ = ["main", "make_parser"]

RATE = 0.01
LIMITS = {"dense": 1.5, "sparse": 1.1}
"""The plain step may take this many times as long as the training API's."""


def main(argv: list[str]) -> int:
    """Measure and print; the exit code does not depend on speed."""
    arguments = make_parser().parse_args(argv)
    cap_peers()
    with tempfile.TemporaryDirectory(prefix="sparsyedge-bench-") as folder:
        artifacts = export_resnet(arguments.width, Path(folder) / "artifacts")
        rows = {name: _row(artifacts, name, arguments) for name in LIMITS}
    note = disturbance(arguments.threads)
    if arguments.json:
        print(json.dumps({"machine": machine(), "isa": instruction_set(), "ms": rows, "notes": [note] if note else []}))
        return 0
    sizes = f"width {arguments.width}, batch {arguments.batch}, {arguments.threads} thread(s)"
    print(f"ResNet-18, {sizes}, {instruction_set()}")
    for name, row in rows.items():
        ratio = row["plain"] / row["api"]
        print(
            f"{name:<7} plain {row['plain']:7.1f} ms   training API {row['api']:7.1f} ms   "
            f"ratio {ratio:.2f} (aim: at most {LIMITS[name]})"
        )
    if note:
        print(f"note: {note}")
    return 0


class _Stepper:
    """One session on one batch."""

    def __init__(self, kind: str, artifacts: Artifacts, state: State, arguments: argparse.Namespace) -> None:
        from sparsyedge.edge.training.dense_session import DenseSession
        from sparsyedge.edge.training.sparse_session import SparseSession

        self._session = (DenseSession if kind == "api" else SparseSession)(artifacts, threads=arguments.threads)
        self._session.load(state)
        rng = np.random.default_rng(0)
        shape = (arguments.batch, *artifacts.manifest.input_shape)
        self._x: FloatArray = rng.standard_normal(shape, dtype=np.float32)
        self._y = rng.integers(0, artifacts.manifest.classes, arguments.batch)

    def step(self) -> float:
        return self._session.train_step(self._x, self._y, RATE)


def _row(artifacts: Artifacts, name: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Medians in ms."""
    from sparsyedge.edge.model.checkpoint import read_initial_state
    from sparsyedge.edge.model.prune import prune_global

    sparsity = SPARSITY if name == "sparse" else 0.0
    state = prune_global(read_initial_state(artifacts), artifacts.manifest.prunable, sparsity)
    contestants = {kind: _Stepper(kind, artifacts, state, arguments) for kind in ("plain", "api")}
    return {kind: timing.median_ms for kind, timing in measure(contestants, steps=arguments.steps).items()}


def make_parser() -> Parser:
    parser = Parser(prog="sparsyedge bench runtime", description=(__doc__ or "").split("\n\n")[1])
    add = parser.add_argument
    add("--width", type=positive, default=64, help="channels of the first stage (default: %(default)s)")
    add("--batch", type=positive, default=16, help="samples per step (default: %(default)s)")
    add("--threads", type=positive, default=1, help="of both (default: %(default)s)")
    add("--steps", type=positive, default=15, help="measured per session (default: %(default)s)")
    add("--json", action="store_true", help="print one JSON document on stdout")
    return parser
