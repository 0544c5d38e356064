"""One measured run: a Mosquitto, a coordinator process, and processes of light devices."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from sparsyedge.benchmarks.rounds.crew import Crew, started
from sparsyedge.benchmarks.rounds.figures import Figures, split_of
from sparsyedge.benchmarks.rounds.host import Job, Told, host
from sparsyedge.benchmarks.rounds.usage import Peaks, child_named, cpu_s, forget_peaks, pss_mb, rss_mb, tree, watched
from sparsyedge.benchmarks.simulate.local_mosquitto import started_mosquitto
from sparsyedge.coordinator.record.store import STORE_NAME, Store
from sparsyedge.edge.config import BrokerConfig
from sparsyedge.edge.errors import RunError
from sparsyedge.edge.wire.codecs import Codec

__all__ = ["FLEET", "Plan", "RunResult", "broker_pid", "jobs_of", "measure"]

FLEET = "bench"
RUN = "rounds"
DEVICES_PER_PROCESS = 2500
START_LIMIT_S = 300.0
SETTLE_S = 1.0
END_LIMIT_S = 120.0
POLL_S = 0.1
NEVER = 1_000_000
"""Rounds between evaluations: only the one at the run's end takes place, and no measured round waits for it."""


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    devices: int
    codec: Codec
    rounds: int
    variants: int
    limit_s: float
    fsyncs: bool = False
    extra: tuple[str, ...] = ()
    """Further lines of run.toml."""


@dataclass
class RunResult:
    """The figures of one run, and what its devices complained about."""

    figures: Figures
    problems: list[str] = field(default_factory=list)
    chunks: tuple[int, ...] = ()
    """The number of chunks of each variant."""
    chunk_bytes: int = 0


@dataclass
class _Marks:
    """Readings at the beginning and the end of the measured round's uploads."""

    start_mb: float = 0.0
    idle_mb: float = 0.0
    idle_pss_mb: float = 0.0
    joined_mb: float = 0.0
    round_mb: float = 0.0
    join_s: float = 0.0
    go_unix_s: float = 0.0
    cpu_s: tuple[float, float, float] = (0.0, 0.0, 0.0)
    cpu_after_s: tuple[float, float, float] = (0.0, 0.0, 0.0)


def jobs_of(plan: Plan, artifacts: Path, port: int, frames: str = "") -> list[Job]:
    """The devices, spread evenly over as few processes as their number allows."""
    processes = -(-plan.devices // DEVICES_PER_PROCESS)
    bounds = [plan.devices * index // processes for index in range(processes + 1)]
    return [
        Job(
            artifacts=str(artifacts),
            port=port,
            fleet=FLEET,
            first=first,
            count=after - first,
            variants=plan.variants,
            codec=plan.codec,
            rounds=plan.rounds,
            frames=frames if first == 0 else "",
        )
        for first, after in itertools.pairwise(bounds)
    ]


def broker_pid() -> int:
    """The Mosquitto that this process has started."""
    pid = child_named("mosquitto")
    if pid is None:
        raise RunError("the Mosquitto that this command started is gone; its log may say why")
    return pid


def measure(plan: Plan, artifacts: Path, scratch: Path) -> RunResult:
    """Run the rounds and measure the last; the updates that were sent are left in `scratch/frames`."""
    with started_mosquitto(scratch) as broker:
        jobs = jobs_of(plan, artifacts, broker.port, str(scratch / "frames"))
        with started(host, jobs) as crew, _coordinator(plan, scratch, artifacts, broker) as process:
            measuring = _Measuring(plan, scratch, crew, process)
            return measuring.run()


class _Measuring:
    """One run, from the first connect to the coordinator's end."""

    def __init__(self, plan: Plan, scratch: Path, crew: Crew, process: subprocess.Popen[bytes]) -> None:
        self._plan = plan
        self._run_dir = scratch / "run"
        self._scratch = scratch
        self._crew = crew
        self._process = process
        self._broker = broker_pid()
        self._marks = _Marks()

    def run(self) -> RunResult:
        self._await_idle()
        joining_s = time.monotonic()
        with watched(self._process.pid, self._broker) as (coordinator, broker):
            self._crew.say("join")
            for round_number in range(1, self._plan.rounds + 1):
                ready = self._await_all("ready")
                if round_number == 1:
                    self._marks.join_s = time.monotonic() - joining_s
                self._mark_start()
                self._crew.say("go")
                done = self._await_all("done", on=("accepted", self._mark_end))
                problems = [f"{each.device}: {each.problem}" for told in done for each in told.observed if each.problem]
                if problems:
                    break
            if not problems:
                self._await_close()
            self._marks.round_mb = coordinator.sum_mb
            self._end()
        return self._result(ready, done, coordinator, broker, problems)

    # ---- waiting -----------------------------------------------------------------------------------------------------

    def _await_idle(self) -> None:
        """Note the coordinator's memory once it waits for devices, and what it took to get there."""
        until_s = time.monotonic() + START_LIMIT_S
        while "waits for" not in self._log():
            if time.monotonic() > until_s:
                raise RunError(f"the coordinator did not start: {self._log()[-500:]}")
            self._check()
            time.sleep(POLL_S)
        time.sleep(SETTLE_S)
        pid, marks = self._process.pid, self._marks
        # A start reads and writes whole models. Its peak must not pass for one of the rounds.
        marks.start_mb = forget_peaks(pid)
        marks.idle_mb, marks.idle_pss_mb = rss_mb(pid), pss_mb(pid)

    def _await_all(self, what: str, on: tuple[str, Callable[[], None]] | None = None) -> list[Told]:
        return self._crew.await_all(what, limit_s=self._plan.limit_s, on=on, check=self._check)

    def _await_close(self) -> None:
        until_s = time.monotonic() + self._plan.limit_s
        while _closed_at(self._run_dir, self._plan.rounds) is None:
            self._check()
            if time.monotonic() > until_s:
                raise RunError(f"round {self._plan.rounds} was not closed after {self._plan.limit_s:g} s")
            time.sleep(POLL_S)

    def _end(self) -> None:
        """Have the coordinator give up the round that nobody takes part in; it delivers its model and ends."""
        # A tracer would let its child live on.
        os.kill(tree(self._process.pid)[1] if self._plan.fsyncs else self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired as error:
            raise RunError(f"the coordinator did not end within {END_LIMIT_S:g} s: {self._log()[-500:]}") from error

    def _check(self) -> None:
        if self._process.poll() is not None:
            raise RunError(f"the coordinator ended with exit code {self._process.returncode}: {self._log()[-500:]}")

    def _log(self) -> str:
        return (self._scratch / "coordinator.log").read_text(errors="replace")

    # ---- readings ----------------------------------------------------------------------------------------------------

    def _mark_start(self) -> None:
        self._marks.joined_mb = rss_mb(self._process.pid)
        self._marks.cpu_s = self._marks.cpu_after_s = self._cpu_s()
        self._marks.go_unix_s = time.time()

    def _mark_end(self) -> None:
        self._marks.cpu_after_s = self._cpu_s()

    def _cpu_s(self) -> tuple[float, float, float]:
        return cpu_s(self._process.pid), cpu_s(self._broker), self._crew.cpu_s()

    def _result(
        self, ready: Sequence[Told], done: Sequence[Told], coordinator: Peaks, broker: Peaks, problems: list[str]
    ) -> RunResult:
        plan, marks = self._plan, self._marks
        observed = [each for told in done for each in told.observed]
        with closing(Store.open(self._run_dir)) as store:
            recorded = store.accepted(plan.rounds)
            times = store.acceptance_times(plan.rounds)
            model_mb = store.run().dense_bytes / 1e6
        told = {each.device for each in observed if each.seconds is not None}
        waits = sorted(each.seconds for each in observed if each.seconds is not None) or [float("nan")]
        seconds = max(times, default=marks.go_unix_s) - marks.go_unix_s or float("nan")
        sizes, chunk_bytes = ready[0].update_bytes, ready[0].chunk_bytes
        mean_bytes = statistics.fmean(sizes[number % len(sizes)] for number in range(plan.devices))
        used = [(after - before) / plan.devices for after, before in zip(marks.cpu_after_s, marks.cpu_s, strict=True)]
        up, down, bytes_up, bytes_down, lost = (sum(counts) for counts in zip(*(t.traffic for t in done), strict=True))
        closed_at = _closed_at(self._run_dir, plan.rounds)
        first_ms, later_ms = split_of([at_s - marks.go_unix_s for at_s in times])
        figures = Figures(
            devices=plan.devices,
            accepted=len(recorded),
            lost=plan.devices - len(told & set(recorded)),
            counted_twice=len(times) - len(recorded),
            answered_again=sum(each.answered_again for each in observed),
            seconds=round(seconds, 3),
            updates_per_s=round(len(recorded) / seconds, 2),
            ms_per_update=round(1000 * seconds / max(1, len(recorded)), 3),
            first_ms=round(first_ms, 1),
            later_ms_per_update=round(later_ms, 3),
            mb_per_s=round(len(recorded) * mean_bytes / seconds / 1e6, 2),
            update_bytes=round(mean_bytes),
            chunks_per_update=statistics.fmean(-(-size // chunk_bytes) for size in sizes),
            p50_s=round(statistics.median(waits), 3),
            p99_s=round(waits[min(len(waits) - 1, int(0.99 * len(waits)))], 3),
            close_s=round(closed_at - max(times), 3) if closed_at and times else None,
            coordinator_cpu_s_per_update=round(used[0], 6),
            broker_cpu_s_per_update=round(used[1], 6),
            devices_cpu_s_per_update=round(used[2], 6),
            coordinator_start_mb=round(marks.start_mb, 2),
            coordinator_idle_mb=round(marks.idle_mb, 2),
            coordinator_joined_mb=round(marks.joined_mb, 2),
            coordinator_round_mb=round(marks.round_mb, 2),
            coordinator_peak_mb=round(coordinator.sum_mb, 2),
            coordinator_private_mb=round(coordinator.private_mb, 2),
            worker_mb=tuple(round(each, 1) for each in coordinator.children_mb.values()),
            growth_models=round((coordinator.sum_mb - marks.idle_mb) / model_mb, 2),
            growth_round_models=round((marks.round_mb - marks.idle_mb) / model_mb, 2),
            growth_once_models=_growth_once(coordinator, marks, model_mb),
            model_mb=round(model_mb, 2),
            broker_mb=round(broker.sum_mb, 2),
            messages_up=round(up / plan.devices, 2),
            messages_down=round(down / plan.devices, 2),
            bytes_up=round(bytes_up / plan.devices),
            bytes_down=round(bytes_down / plan.devices),
            offers=round(statistics.fmean(each.offers for each in observed), 2),
            model_bytes=ready[0].model_bytes,
            task_bytes=ready[0].task_bytes,
            join_s=round(marks.join_s, 2),
            lost_connections=lost,
            fsyncs_per_update=self._fsyncs(marks.go_unix_s, max(times, default=0.0)),
        )
        chunks = tuple(-(-size // chunk_bytes) for size in sizes)
        return RunResult(figures, problems, chunks, chunk_bytes)

    def _fsyncs(self, since_s: float, until_s: float) -> float | None:
        """Calls that strace has seen between these times, per device."""
        if not self._plan.fsyncs:
            return None
        lines = (self._scratch / "fsyncs.log").read_text(errors="replace").splitlines()
        times = [float(line.split()[1]) for line in lines if "sync(" in line and "resumed" not in line]
        return round(sum(since_s <= each <= until_s for each in times) / self._plan.devices, 3)


def _growth_once(coordinator: Peaks, marks: _Marks, model_mb: float) -> float | None:
    """The growth of all processes with shared pages counted once; None if there is only one."""
    return round((coordinator.pss_mb - marks.idle_pss_mb) / model_mb, 2) if coordinator.pss_mb else None


def _closed_at(run_dir: Path, round_number: int) -> float | None:
    """When the round was recorded as closed."""
    with closing(sqlite3.connect(f"file:{run_dir / STORE_NAME}?mode=ro", uri=True, timeout=30)) as connection:
        row = connection.execute("SELECT closed_at FROM rounds WHERE round = ?", (round_number,)).fetchone()
    return float(row[0]) if row and row[0] is not None else None


@contextmanager
def _coordinator(plan: Plan, scratch: Path, artifacts: Path, broker: BrokerConfig) -> Iterator[subprocess.Popen[bytes]]:
    config = scratch / "run.toml"
    lines = [
        f'name = "{RUN}"',
        f'fleet = "{FLEET}"',
        f'artifacts = "{artifacts}"',
        f'run_dir = "{scratch / "run"}"',
        'dataset = "digits"',
        # One more than measured, so that the last measured round is not the run's last, which is always evaluated.
        f"rounds = {plan.rounds + 1}",
        f"eval_every = {NEVER}",
        f"cohort_size = {plan.devices}",
        f'codec = "{plan.codec}"',
        "deadline_s = 86400",
        *plan.extra,
        "[broker]",
        f"port = {broker.port}",
    ]
    config.write_text("\n".join(lines) + "\n")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-c", "import sys; from sparsyedge.edge.cli import main; sys.exit(main())"]
    with (scratch / "coordinator.log").open("wb") as log:
        process = subprocess.Popen(
            [*_tracer(plan, scratch), *command, "coordinator", "run", str(config)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
        )
    try:
        yield process
    finally:
        for pid in tree(process.pid) if process.poll() is None else ():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def _tracer(plan: Plan, scratch: Path) -> list[str]:
    if not plan.fsyncs:
        return []
    if shutil.which("strace") is None:
        raise RunError("--fsyncs counts system calls with strace, which is not on the PATH; apt-get install strace")
    output = str(scratch / "fsyncs.log")
    return ["strace", "-f", "--seccomp-bpf", "-qq", "-ttt", "-e", "trace=fsync,fdatasync", "-o", output]
