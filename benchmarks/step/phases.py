"""Breaks down our step with ONNX Runtime's profiler, in a separate run because profiling costs time."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnxruntime

from sparsyedge.benchmarks.step.workload import LEARNING_RATE, Workload
from sparsyedge.edge.training.bound_step import BoundStep
from sparsyedge.edge.training.onnx_runtime import graph_options
from sparsyedge.edge.training.sparse_session import SparseSession

__all__ = ["PHASES", "phase_ms", "split"]

PHASES = {
    "conv_forward": ("SparseConv",),
    "grad_input": ("SparseConvGradInput",),
    "grad_weight": ("SparseConvGradWeight",),
    "batch_norm": ("BatchNormAct", "BatchNormActGrad"),
    "save_activation": ("SaveActivation",),
    # All work on the parameters themselves, including the power before the forward pass.
    "update": ("PowerProp", "PowerPropStep", "DecayStep"),
}
"""The ops of each part of the step; `other` is the rest, including the runtime between ops."""

OTHER = "other"
WARM_UP = 2


def phase_ms(workload: Workload, *, steps: int) -> dict[str, float]:
    """The median milliseconds of each part of a step, `other` last."""
    with tempfile.TemporaryDirectory(prefix="sparsyedge-profile-") as folder:
        session = _ProfiledSession(workload, Path(folder) / "step")
        for _ in range(WARM_UP + steps):
            session.train_step(workload.x, workload.y, LEARNING_RATE)
        events = json.loads(session.end_profiling().read_text())
    return split(events)


def split(events: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The medians over all runs of a profile except the warm-up."""
    parts = {operator: part for part, operators in PHASES.items() for operator in operators}
    runs = sorted((event["ts"], event["dur"]) for event in events if event["name"] == "model_run")[WARM_UP:]
    kernels = [event for event in events if event["name"].endswith("_kernel_time")]
    rows = []
    for start, duration in runs:
        row = Counter({OTHER: duration})
        for kernel in kernels:
            part = parts.get(kernel["args"]["op_name"], OTHER)
            if part != OTHER and start <= kernel["ts"] < start + duration:
                row[part] += kernel["dur"]
                row[OTHER] -= kernel["dur"]
        rows.append(row)
    return {part: statistics.median(row[part] for row in rows) / 1e3 for part in (*PHASES, OTHER)}


class _ProfiledSession(SparseSession):
    """Our session with the profiler on."""

    def __init__(self, workload: Workload, prefix: Path) -> None:
        super().__init__(workload.artifacts, threads=workload.threads)
        options = graph_options(workload.threads)
        options.enable_profiling = True
        options.profile_file_prefix = str(prefix)
        path = workload.artifacts.path("sparse_step")
        self._step = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._bound = BoundStep(self._step)
        self.load(workload.state)

    def end_profiling(self) -> Path:
        """Write the profile and return where it is."""
        return Path(self._step.end_profiling())
