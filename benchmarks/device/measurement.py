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
from sparsyedge.benchmarks.device.soak import SoakLog, SoakSample
from sparsyedge.benchmarks.step.profiles import global_sparsity
from sparsyedge.benchmarks.step.workload import LEARNING_RATE, Workload
from sparsyedge.edge.commands import logs
from sparsyedge.edge.device.energy import PhaseRecorder, measure_idle, open_meter, peak_rss_mb
from sparsyedge.edge.errors import SparsyedgeError, TrainingError
from sparsyedge.edge.model.prune import prune_global
from sparsyedge.edge.phase_costs import Kind, PhaseCost
from sparsyedge.edge.tensors import dense_bytes, model_id
from sparsyedge.edge.training.session import Session
from sparsyedge.edge.training.session_holder import SessionHolder
from sparsyedge.edge.wire.codecs import DEFAULT_CODEC, LOSSLESS
from sparsyedge.edge.wire.frame import encode_frame, frame_of

__all__ = ["Task", "Turn", "main", "run"]

WARM_UP = 2
FIRST_SPARSE = 2
"""The first round whose updates are differences to a model that both sides hold."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """The task of one turn; `workload` is a file from `Workload.save`."""

    artifacts: str
    workload: str
    threads: int
    seconds: float
    meter: str
    idle_s: float
    least_steps: int = 0
    """How many steps to take even after the time is up."""
    limit_s: float = 0.0
    """The most seconds that all of it may take; 0 for no limit."""


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
    warm_up_s: float = 0.0
    """How long steps were taken before the first that counts."""
    throttled_before: bool | None = None
    soak: list[SoakSample] = []
    round_bytes: dict[str, int] = {}
    """Of an update from round 2 on, by codec, and of the model as plain float32."""


def run(task: Task, load: Callable[[Task], Workload] | None = None) -> Turn:
    """Train until the time is up, then prune and encode once; measures each phase.

    `load` makes the workload, after idle power was measured; by default from the task's file.
    """
    meter = open_meter(task.meter)
    throttled_before = read_throttling()
    try:
        idle_w = measure_idle(meter, task.idle_s)
        workload = (load or _from_file)(task)
        holder = SessionHolder(threads=task.threads)
        holder.put(workload.artifacts, "bench")
        session = holder.session(workload.state, round_number=1)
        warm_up_s = _warm_up(session, workload, task)
        recorder, log = PhaseRecorder(meter), SoakLog(meter)
        with recorder.phase("train"):
            step_s = _train(session, workload, task, log)
        update_bytes = _finish(recorder, session, workload)
        return Turn(
            graph=session.kind,
            step_s=step_s,
            samples=len(step_s) * len(workload.x),
            phases=recorder.snapshot(),
            update_bytes=update_bytes,
            peak_rss_mb=peak_rss_mb(),
            start_c=log.celsius[0] if log.celsius else None,
            peak_c=max(log.celsius, default=None),
            throttled=read_throttling(),
            energy_source=meter.name,
            energy_kind=meter.kind,
            energy_hz=meter.sample_hz,
            idle_w=idle_w,
            meter_overhead=float(getattr(meter, "overhead", 0.0)),
            warm_up_s=warm_up_s,
            throttled_before=throttled_before,
            soak=log.samples,
            round_bytes=_round_bytes(session, workload),
        )
    finally:
        meter.stop()


def _from_file(task: Task) -> Workload:
    return Workload.load(Path(task.artifacts), Path(task.workload), threads=task.threads)


def _warm_up(session: Session, workload: Workload, task: Task) -> float:
    """Take the first steps; raises TrainingError if the steps that must follow would not be over in time."""
    begun_s = time.perf_counter()
    for _ in range(WARM_UP):
        session.train_step(workload.x, workload.y, LEARNING_RATE)
    warm_up_s = time.perf_counter() - begun_s
    needed_s = max(task.seconds, task.least_steps * warm_up_s / WARM_UP)
    if task.limit_s and warm_up_s + needed_s > task.limit_s:
        raise TrainingError(
            f"no time: a batch takes about {warm_up_s / WARM_UP:.1f} s, so this needs {warm_up_s + needed_s:.0f} s of "
            f"the {task.limit_s:.0f} s allowed"
        )
    return warm_up_s


def _train(session: Session, workload: Workload, task: Task, log: SoakLog) -> list[float]:
    step_s: list[float] = []
    begun_s = time.perf_counter()
    log.look(0)
    while (now_s := time.perf_counter()) - begun_s < task.seconds or len(step_s) < task.least_steps:
        session.train_step(workload.x, workload.y, LEARNING_RATE)
        step_s.append(time.perf_counter() - now_s)
        log.look(len(step_s))
    log.look(len(step_s), last=True)
    return step_s


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


def _round_bytes(session: Session, workload: Workload) -> dict[str, int]:
    """What the trained model weighs on the wire as a difference to the one that training began with."""
    trained, prunable = session.state(), workload.artifacts.manifest.prunable
    base_id = model_id(workload.state)
    sizes: dict[str, int] = {
        codec: len(
            frame_of(
                trained,
                run="bench",
                round_number=FIRST_SPARSE,
                base_id=base_id,
                base=workload.state,
                codec=codec,
                prunable=prunable,
            )
        )
        for codec in (LOSSLESS, DEFAULT_CODEC)
    }
    return {**sizes, "float32": dense_bytes(trained)}


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
