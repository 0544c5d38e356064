"""`sparsyedge bench predict`: one sample through a device's model, `edge predict` against plain onnxruntime.

Both take turns in one process, with one sample at a time. The file is written as a device writes it; the peer is
onnxruntime's own session over the same file, with nothing but the number of threads set.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from sparsyedge.benchmarks.common.machine import cap_peers, disturbance, instruction_set, machine
from sparsyedge.benchmarks.common.number_arguments import positive
from sparsyedge.benchmarks.runtime.resnet import SPARSITY, export_resnet
from sparsyedge.benchmarks.step.contestants import Contestant
from sparsyedge.benchmarks.step.measure import measure
from sparsyedge.edge.commands.arguments import Parser

__all__ = ["main", "make_parser"]


def main(argv: list[str]) -> int:
    """Measure and print; the exit code does not depend on speed."""
    arguments = make_parser().parse_args(argv)
    cap_peers()
    with tempfile.TemporaryDirectory(prefix="sparsyedge-bench-") as folder:
        path, write_s = _write_model(arguments.width, Path(folder))
        size_mb = path.stat().st_size / 1e6
        contestants: dict[str, Contestant] = {"ours": _Ours(path, arguments), "plain": _Plain(path, arguments)}
        times = measure(contestants, steps=arguments.steps)
        found = {name: timing.median_ms for name, timing in times.items()}
    note = disturbance(arguments.threads)
    if arguments.json:
        document = {"machine": machine(), "isa": instruction_set(), "ms": found, "model_mb": size_mb}
        print(json.dumps({**document, "write_s": write_s, "notes": [note] if note else []}))
        return 0
    print(
        f"ResNet-18, width {arguments.width}, one sample, {arguments.threads} thread(s), model.onnx of {size_mb:.1f} MB"
    )
    print(f"edge predict        {found['ours']:7.2f} ms")
    print(f"plain onnxruntime   {found['plain']:7.2f} ms   ratio {found['ours'] / found['plain']:.2f}")
    print(f"written in          {write_s:7.2f} s")
    if note:
        print(f"note: {note}")
    return 0


class _Ours:
    """The session of `edge predict`."""

    def __init__(self, path: Path, arguments: argparse.Namespace) -> None:
        from sparsyedge.edge.inference.predictor import Predictor

        self._predictor = Predictor(path, threads=arguments.threads)
        self._batch = _pixels(self._predictor.batch_shape)

    def step(self) -> float:
        return float(self._predictor.probabilities(self._batch)[0, 0])


class _Plain:
    """A session that knows nothing of sparsyedge."""

    def __init__(self, path: Path, arguments: argparse.Namespace) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = arguments.threads
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        (self._input,) = self._session.get_inputs()
        self._batch = _pixels(tuple(self._input.shape[1:]))

    def step(self) -> float:
        (probabilities,) = self._session.run(["probabilities"], {self._input.name: self._batch})
        return float(probabilities[0, 0])


def _pixels(shape: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.random.default_rng(0).integers(0, 256, (1, *shape), dtype=np.uint8)


def _write_model(width: int, folder: Path) -> tuple[Path, float]:
    """The model.onnx of a pruned ResNet-18, and the seconds that writing it took."""
    from sparsyedge.edge.inference.delivery import write_models
    from sparsyedge.edge.inference.description import Origin
    from sparsyedge.edge.inference.preprocessing import MODEL_NAME
    from sparsyedge.edge.model.checkpoint import read_initial_state
    from sparsyedge.edge.model.prune import prune_global

    artifacts = export_resnet(width, folder / "artifacts")
    state = prune_global(read_initial_state(artifacts), artifacts.manifest.prunable, SPARSITY)
    origin = Origin(run="bench", round=1, sparsity=SPARSITY)
    started_s = time.perf_counter()
    write_models(folder, state, artifacts, origin, names=(MODEL_NAME,))
    return folder / MODEL_NAME, time.perf_counter() - started_s


def make_parser() -> Parser:
    """The options of `sparsyedge bench predict`."""
    parser = Parser(prog="sparsyedge bench predict", description=(__doc__ or "").split("\n\n")[1])
    add = parser.add_argument
    add("--width", type=positive, default=64, help="channels of the first stage (default: %(default)s)")
    add("--threads", type=positive, default=1, help="of both (default: %(default)s)")
    add("--steps", type=positive, default=50, help="samples measured per session (default: %(default)s)")
    add("--json", action="store_true", help="print one JSON document on stdout")
    return parser
