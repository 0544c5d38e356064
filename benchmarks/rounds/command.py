"""`sparsyedge bench rounds`: one round of many devices over a real Mosquitto, with a real coordinator process."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import msgspec

from sparsyedge.benchmarks.common.number_arguments import positive
from sparsyedge.benchmarks.rounds.devices import host
from sparsyedge.benchmarks.simulate.local_mosquitto import started_mosquitto
from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.config import BrokerConfig
from sparsyedge.edge.data import DATASETS
from sparsyedge.edge.errors import RunError
from sparsyedge.edge.model.methods import MethodConfig, method_of
from sparsyedge.export.build import build_artifacts
from sparsyedge.export.model_spec import ModelSpec

__all__ = ["Figures", "main", "make_parser"]

FLEET = "bench"
DEVICES_PER_PROCESS = 250
START_LIMIT_S = 300.0
POLL_S = 0.2
OPEN_FILES_PER_DEVICE = 4
SPARE_FILES = 512


@dataclass(frozen=True)
class Figures:
    """The round's result; times are seconds from a device's first offer to the acceptance of its update."""

    devices: int
    accepted: int
    lost: int
    duplicates_ignored: int
    updates_per_s: float
    p50_s: float
    p99_s: float
    coordinator_rss_mb: float
    broker_rss_mb: float


@dataclass(frozen=True)
class Memory:
    """The coordinator's memory before any device joined, its peak, and the size of one dense model."""

    idle_mb: float
    peak_mb: float
    model_mb: float

    @property
    def growth(self) -> float:
        """Growth in units of dense models."""
        return (self.peak_mb - self.idle_mb) / self.model_mb


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """What one device observed."""

    device: str
    seconds: float | None
    answered_again: int
    problem: str


def main(argv: list[str]) -> int:
    """The command line of `sparsyedge bench rounds`."""
    arguments = make_parser().parse_args(argv)
    _allow_open_files(arguments.devices)
    with tempfile.TemporaryDirectory(prefix="sparsyedge-rounds-") as scratch:
        figures, memory, problems = _measure(arguments, Path(scratch))
    for problem in problems[:5]:
        print(f"a device: {problem}", file=sys.stderr)
    line = (
        f"coordinator: {memory.idle_mb:.0f} MB idle, {memory.peak_mb:.0f} MB at its peak: {memory.growth:.2f} dense "
        f"models of {memory.model_mb:.1f} MB more"
    )
    if arguments.json:
        print(line, file=sys.stderr)
        print(json.dumps(asdict(figures)))
    else:
        for name, value in asdict(figures).items():
            print(f"{name:<20} {value:g}")
        print(line)
    return 0 if figures.lost == 0 else 1


def _measure(arguments: argparse.Namespace, scratch: Path) -> tuple[Figures, Memory, list[str]]:
    artifacts = scratch / "artifacts"
    spec = ModelSpec.for_data("resnet18", arguments.width, DATASETS["digits"].form)
    build_artifacts(spec, method_of(MethodConfig()), artifacts, seed=0, check=lambda *made: None)
    names = [(number, f"device-{number:05d}") for number in range(arguments.devices)]
    with ExitStack() as stack:
        broker = stack.enter_context(started_mosquitto(scratch))
        pipes = stack.enter_context(_hosts(names, artifacts, broker))
        process = stack.enter_context(_coordinator(scratch, artifacts, broker, arguments.devices))
        idle_mb = _await_idle(process, scratch)
        started_s = time.monotonic()
        for pipe in pipes:
            pipe.send_bytes(b"go")
        peak_mb, broker_mb = _watch(process)
        elapsed_s = time.monotonic() - started_s
        answers = [msgspec.convert(each, Answer) for pipe in pipes for each in json.loads(pipe.recv_bytes())]
        if process.returncode != 0:
            tail = (scratch / "coordinator.log").read_text(errors="replace")[-500:]
            raise RunError(f"the coordinator ended with exit code {process.returncode}: {tail}")
    return _figures(scratch / "run", answers, elapsed_s, idle_mb, peak_mb, broker_mb)


def _figures(
    run_dir: Path, answers: list[Answer], elapsed_s: float, idle_mb: float, peak_mb: float, broker_mb: float
) -> tuple[Figures, Memory, list[str]]:
    with closing(Store.open(run_dir)) as store:
        recorded = set(store.accepted(1))
        model_mb = store.run().dense_bytes / 1e6
        times = store.acceptance_times(1)
    told = {answer.device for answer in answers if answer.seconds is not None}
    seconds = sorted(answer.seconds for answer in answers if answer.seconds is not None) or [float("nan")]
    window_s = max(times) - min(times) if len(times) > 1 else elapsed_s
    figures = Figures(
        devices=len(answers),
        accepted=len(recorded),
        # Counts updates that nobody recorded, and updates confirmed to a device but not recorded.
        lost=len(answers) - len(recorded & told),
        duplicates_ignored=sum(answer.answered_again for answer in answers),
        updates_per_s=round(len(recorded) / window_s, 2) if window_s else float(len(recorded)),
        p50_s=round(statistics.median(seconds), 2),
        p99_s=round(seconds[min(len(seconds) - 1, int(0.99 * len(seconds)))], 2),
        coordinator_rss_mb=round(peak_mb, 1),
        broker_rss_mb=round(broker_mb, 1),
    )
    problems = [f"{answer.device}: {answer.problem}" for answer in answers if answer.problem]
    return figures, Memory(idle_mb, peak_mb, model_mb), problems


# ---- processes -------------------------------------------------------------------------------------------------------


@contextmanager
def _hosts(names: list[tuple[int, str]], artifacts: Path, broker: BrokerConfig) -> Iterator[list[Connection]]:
    """Start processes with a few hundred devices each; they connect on command."""
    context = multiprocessing.get_context("spawn")
    processes: list[BaseProcess] = []
    pipes: list[Connection] = []
    try:
        for start in range(0, len(names), DEVICES_PER_PROCESS):
            ours, theirs = context.Pipe()
            part = names[start : start + DEVICES_PER_PROCESS]
            process = context.Process(target=host, args=(theirs, str(artifacts), broker.port, FLEET, part), daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        for pipe in pipes:
            if not pipe.poll(START_LIMIT_S):
                raise RunError("a process of devices did not start; is the machine out of memory?")
            pipe.recv_bytes()
        yield pipes
    finally:
        for pipe in pipes:
            pipe.close()
        for started in processes:
            started.join(START_LIMIT_S)
            if started.is_alive():
                started.kill()
                started.join()
            started.close()


@contextmanager
def _coordinator(
    scratch: Path, artifacts: Path, broker: BrokerConfig, devices: int
) -> Iterator[subprocess.Popen[bytes]]:
    config = scratch / "run.toml"
    config.write_text(
        f'name = "rounds"\nfleet = "{FLEET}"\nartifacts = "{artifacts}"\nrun_dir = "{scratch / "run"}"\n'
        f'dataset = "digits"\nrounds = 1\ncohort_size = {devices}\ndeadline_s = 86400\n'
        f"[broker]\nport = {broker.port}\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-c", "import sys; from sparsyedge.edge.cli import main; sys.exit(main())"]
    with (scratch / "coordinator.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "coordinator", "run", str(config)], stdout=log, stderr=subprocess.STDOUT, env=environment
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _await_idle(process: subprocess.Popen[bytes], scratch: Path) -> float:
    """The coordinator's memory once it waits for devices."""
    until_s = time.monotonic() + START_LIMIT_S
    while "waiting for devices" not in (scratch / "coordinator.log").read_text(errors="replace"):
        if process.poll() is not None or time.monotonic() > until_s:
            raise RunError(f"the coordinator did not start: {(scratch / 'coordinator.log').read_text()[-500:]}")
        time.sleep(POLL_S)
    time.sleep(1.0)
    return _status_mb(process.pid, "VmRSS")


def _watch(process: subprocess.Popen[bytes]) -> tuple[float, float]:
    """The memory peaks of coordinator and broker until the run is over."""
    peak_mb = broker_mb = 0.0
    broker = _child_named("mosquitto")
    while process.poll() is None:
        peak_mb = max(peak_mb, _status_mb(process.pid, "VmHWM"))
        broker_mb = max(broker_mb, _status_mb(broker, "VmHWM"))
        time.sleep(POLL_S)
    return peak_mb, broker_mb


def _child_named(name: str) -> int:
    for line in Path("/proc/self/task").glob("*/children"):
        for pid in line.read_text().split():
            if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                return int(pid)
    raise RunError(f"no process {name} was started by this one")


def _status_mb(pid: int, field: str) -> float:
    try:
        found = re.search(rf"^{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return 0.0
    return int(found.group(1)) * 1024 / 1e6 if found else 0.0


def _allow_open_files(devices: int) -> None:
    """Raise our limit of file descriptors: Mosquitto inherits it and needs one per connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_PER_DEVICE * devices + SPARE_FILES
    if soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def make_parser() -> Parser:
    parser = Parser(
        prog="sparsyedge bench rounds",
        description="One round of many devices that do everything but train: a real Mosquitto, a real coordinator.",
    )
    parser.add_argument("--devices", type=positive, default=200, help="devices in the round (default: %(default)s)")
    parser.add_argument("--width", type=positive, default=64, help="channels of the first stage (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    return parser
