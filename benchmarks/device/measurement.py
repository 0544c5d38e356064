"""One turn of `bench device` in its own process: trains one model for a while and prints the cost as JSON.

Each turn needs its own process because peak memory counts everything a process has ever done.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from sparsyedge.benchmarks.device.board import read_throttling
from sparsyedge.benchmarks.step.profiles import global_sparsity
from sparsyedge.benchmarks.step.workload import LEARNING_RATE, Workload
from sparsyedge.edge.commands import logs
from sparsyedge.edge.device.energy import PhaseRecorder, measure_idle, open_meter, peak_rss_mb
from sparsyedge.edge.device.limits import read_vitals
from sparsyedge.edge.errors import SparsyedgeError
from sparsyedge.edge.model.prune import prune_global
from sparsyedge.edge.phase_costs import Kind, PhaseCost
from sparsyedge.edge.training.session import Session
from sparsyedge.edge.training.session_holder import SessionHolder
from sparsyedge.edge.wire.frame import encode_frame

__all__ = ["Task", "Turn", "main"]

WARM_UP = 2
LOOK_S = 1.0
"""Seconds between two readings of the thermometer."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """The task of one turn; `workload` is a file from `Workload.save`."""

    artifacts: str
    workload: str
    threads: int
    seconds: float
    meter: str
    idle_s: float


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one turn; joules are None without a meter."""

    graph: str
    step_s: list[float]
    samples: int
    phases: dict[str, PhaseCost]
    update_bytes: int
    peak_rss_mb: float
    start_c: float | None
    peak_c: float | None
    throttled: bool | None
    energy_source: str
    energy_kind: Kind
    energy_hz: float
    idle_w: float | None
    meter_overhead: float
    """The share of one core spent reading the sensor."""


def run(task: Task) -> Turn:
    """Train until the time is up, then prune and encode once; measures each phase."""
    meter = open_meter(task.meter)
    try:
        idle_w = measure_idle(meter, task.idle_s)
        workload = Workload.load(Path(task.artifacts), Path(task.workload), threads=task.threads)
        holder = SessionHolder(threads=task.threads)
        holder.put(workload.artifacts, "bench")
        session = holder.session(workload.state, round_number=1)
        for _ in range(WARM_UP):
            session.train_step(workload.x, workload.y, LEARNING_RATE)
        recorder = PhaseRecorder(meter)
        celsius: list[float] = []
        with recorder.phase("train"):
            step_s = _train(session, workload, task.seconds, look=lambda: _look(celsius))
        update_bytes = _finish(recorder, session, workload)
        return Turn(
            graph=session.kind,
            step_s=step_s,
            samples=len(step_s) * len(workload.x),
            phases=recorder.snapshot(),
            update_bytes=update_bytes,
            peak_rss_mb=peak_rss_mb(),
            start_c=celsius[0] if celsius else None,
            peak_c=max(celsius, default=None),
            throttled=read_throttling(),
            energy_source=meter.name,
            energy_kind=meter.kind,
            energy_hz=meter.sample_hz,
            idle_w=idle_w,
            meter_overhead=float(getattr(meter, "overhead", 0.0)),
        )
    finally:
        meter.stop()


def _train(session: Session, workload: Workload, seconds: float, *, look: Callable[[], None]) -> list[float]:
    step_s: list[float] = []
    begun_s = looked_s = time.perf_counter()
    look()
    while (now_s := time.perf_counter()) - begun_s < seconds:
        session.train_step(workload.x, workload.y, LEARNING_RATE)
        step_s.append(time.perf_counter() - now_s)
        if now_s - looked_s >= LOOK_S:
            look()
            looked_s = now_s
    return step_s


def _look(celsius: list[float]) -> None:
    found = read_vitals(Path.cwd()).temperature_c
    celsius += [] if found is None else [found]


def _finish(recorder: PhaseRecorder, session: Session, workload: Workload) -> int:
    """Prune and encode as a device does at the end of a round; a dense model is sent whole."""
    manifest = workload.artifacts.manifest
    state = session.state()
    sparsity = global_sparsity(workload.state, manifest.prunable)
    if sparsity:
        with recorder.phase("prune"):
            state = prune_global(state, manifest.prunable, sparsity)
    with recorder.phase("encode"):
        frame = encode_frame(
            state, run="bench", round_number=1, base_id=manifest.initial_model, prunable=manifest.prunable
        ).frame
    return len(frame)


def main(argv: list[str]) -> int:
    """Run the task given as JSON on the command line."""
    logs.set_up()
    try:
        turn = run(msgspec.json.decode(argv[0], type=Task))
    except SparsyedgeError as error:
        print(error, file=sys.stderr)
        return 2
    print(msgspec.json.encode(turn).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
