"""Loads the board step by step and reads the meter meanwhile."""

from __future__ import annotations

import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from sparsyedge.edge.device.energy import LOST_SHARE, EnergyMeter
from sparsyedge.edge.errors import MeterError
from sparsyedge.hardware.meters.calibration import Load, Step

__all__ = ["Plan", "measure", "plan_of"]

START_LIMIT_S = 120.0
"""How long a process that makes load may take to start on a small, busy board."""
SETTLE_SHARE = 0.2
"""The share of a step that is not counted: sensors average, and clocks and fans follow a new load slowly."""
WINDOWS = 10
TRIES = 3
QUICK_SHARE = 0.02
"""A reading that takes less than this share of a window is quick enough."""


@dataclass(frozen=True)
class Plan:
    """One step to come."""

    load: Load
    cores: int

    def __str__(self) -> str:
        return "idle" if self.load == "idle" else f"{self.load}, {self.cores} core{'s' if self.cores > 1 else ''}"


def plan_of(cores: int) -> list[Plan]:
    """Idle, then each load on 1, 2, 4 ... and all cores."""
    counts = sorted({min(2**power, cores) for power in range(cores.bit_length() + 1)})
    loads: tuple[Load, ...] = ("compute", "memory")
    return [Plan("idle", 0), *(Plan(load, count) for load in loads for count in counts)]


def measure(meter: EnergyMeter, plan: Plan, seconds: float, *, sleep: Callable[[float], None] = time.sleep) -> Step:
    """The step's watts; raises MeterError if the meter was silent for a part of it or the load did not run."""
    cores = sorted(os.sched_getaffinity(0))[: plan.cores]
    with ExitStack() as stack:
        workers = [stack.enter_context(_worker(plan.load, core)) for core in cores]
        sleep(SETTLE_SHARE * seconds)
        lost_s, started_s, cpu_s = meter.lost_s, time.monotonic(), _cpu_seconds(workers)
        readings = list(_readings(meter, (1 - SETTLE_SHARE) * seconds / WINDOWS, sleep))
        elapsed_s, busy_s = time.monotonic() - started_s, _cpu_seconds(workers) - cpu_s
        silent_s = meter.lost_s - lost_s
    if silent_s > LOST_SHARE * elapsed_s:
        raise MeterError(
            f"the meter {meter.name} was silent for {silent_s:.1f} of {elapsed_s:.1f} s in the step {plan}, so there "
            "is no calibration; the log has the reason"
        )
    watts = [(joules - before) / (at - since) for (since, before), (at, joules) in pairwise(readings)]
    (first_s, first_j), (last_s, last_j) = readings[0], readings[-1]
    return Step(
        load=plan.load,
        cores=plan.cores,
        busy_cores=busy_s / elapsed_s,
        watts=(last_j - first_j) / (last_s - first_s),
        deviation_w=statistics.stdev(watts),
        windows=len(watts),
        seconds=elapsed_s,
    )


def _readings(meter: EnergyMeter, window_s: float, sleep: Callable[[float], None]) -> Iterator[tuple[float, float]]:
    """Time and joules at the ends of WINDOWS stretches."""
    yield _reading(meter, window_s)
    for _ in range(WINDOWS):
        sleep(window_s)
        yield _reading(meter, window_s)


def _reading(meter: EnergyMeter, window_s: float) -> tuple[float, float]:
    """The meter's joules, and when it had them; a busy machine may interrupt a reading, so the quickest counts."""
    tries: list[tuple[float, float, float]] = []
    while len(tries) < TRIES and not (tries and min(tries)[0] < QUICK_SHARE * window_s):
        before_s, joules, after_s = time.monotonic(), meter.read_joules(), time.monotonic()
        tries.append((after_s - before_s, (before_s + after_s) / 2, joules))
    return min(tries)[1:]


@contextmanager
def _worker(load: Load, core: int) -> Iterator[int]:
    """A process that keeps one core busy; yields its id."""
    command = [sys.executable, "-m", "sparsyedge.benchmarks.meter.load", load, str(core)]
    # Otherwise numpy's threads would load more cores than one.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            ready, _, _ = select.select([process.stdout], [], [], START_LIMIT_S)
            if not ready or process.stdout.readline() != b"ready\n":
                raise MeterError(f"the process that loads core {core} did not start within {START_LIMIT_S:g} s")
            yield process.pid
            if process.poll() is not None:
                raise MeterError(f"the process that loads core {core} ended early, with code {process.returncode}")
        finally:
            # It ends by itself when its input does; a kernel that keeps it from that does not keep us waiting.
            process.kill()


def _cpu_seconds(workers: list[int]) -> float:
    """Processor time of these processes so far."""
    ticks = 0
    for worker in workers:
        fields = Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
