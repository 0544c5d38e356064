"""Runs of real processes that are killed at random moments, and the undisturbed run that they must come to.

Everything is decided by a seed: who is killed, whether SIGKILL comes at a random moment or the process ends itself in
the middle of a write, and whether a broker that was killed finds its store again.
"""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.errors import RunError
from sparsyedge.edge.faults import CRASH_POINTS, CRASH_VARIABLE, EXIT_CODE

Role = Literal["coordinator", "broker", "device", "worker"]
ROLES: tuple[Role, ...] = ("coordinator", "broker", "device", "worker")

DEVICES = 2
LIMIT_S = 300.0
POLL_S = 0.05
CRASH_S = 30.0
"""How long a process may take to come to the write that it is to die in; then it is killed as others are."""
CALM_S = 1.0
"""The longest that a killed process stays away."""


@dataclass(frozen=True)
class Outcome:
    """What must not depend on who died: the models and the updates that they were made of."""

    models: tuple[str, ...]
    accepted: tuple[tuple[int, str, str], ...]


@dataclass
class Kills:
    """How often each role died, and how."""

    by_signal: dict[Role, int] = field(default_factory=lambda: dict.fromkeys(ROLES, 0))
    in_a_write: dict[Role, int] = field(default_factory=lambda: dict.fromkeys(ROLES, 0))
    store_wiped: int = 0
    slowest_s: float = 0.0
    """From the start of a process, or the death of a worker, to the next sign that the run goes on."""

    def of(self, role: Role) -> int:
        return self.by_signal[role] + self.in_a_write[role]

    @property
    def all(self) -> int:
        return sum(self.of(role) for role in ROLES)


class Machine:
    """Broker, coordinator and devices of one run, each a process that can be killed and started again."""

    def __init__(self, folder: Path, artifacts: Path, mosquitto: str, *, rounds: int, ingest_workers: int = 1) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        self._mosquitto = mosquitto
        self._port = _free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self._write_configs(artifacts, rounds)
        self.set_workers(ingest_workers)

    @property
    def names(self) -> tuple[str, ...]:
        return ("broker", "coordinator", *(f"device-{index}" for index in range(DEVICES)))

    def start(self, name: str, *, crash_at: str | None = None) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        environment.pop(CRASH_VARIABLE, None)
        if crash_at is not None:
            environment[CRASH_VARIABLE] = crash_at
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                self._command(name), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
            )
        if name == "broker":
            self._await_broker()

    def kill(self, name: str) -> None:
        process = self._processes[name]
        process.kill()
        process.wait(LIMIT_S)

    def set_workers(self, count: int) -> None:
        """How many workers the coordinator has when it is started next."""
        path = self.folder / "run.toml"
        path.write_text(re.sub(r"ingest_workers = \d+", f"ingest_workers = {count}", path.read_text()))

    def workers(self) -> list[int]:
        """The ids of the coordinator's worker processes."""
        try:
            children = Path(f"/proc/{self._processes['coordinator'].pid}/task").glob("*/children")
            return sorted(int(pid) for each in children for pid in each.read_text().split())
        except OSError:  # the coordinator is gone
            return []

    def exit_code(self, name: str) -> int | None:
        return self._processes[name].poll()

    def wipe_broker(self) -> None:
        (self.folder / "mosquitto.db").unlink(missing_ok=True)

    def end(self) -> None:
        for name, process in self._processes.items():
            if process.poll() is None:
                self.kill(name)

    def logs(self) -> str:
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in sorted(self.folder.glob("*.log"))
        )

    def progress(self) -> tuple[int, int]:
        """Rounds that are closed, and updates that were accepted in all."""
        try:
            with closing(Store.open(self.run_dir)) as store:
                rounds = store.rounds()
                opened = store.progress().open
                return len(rounds), sum(each.updates for each in rounds) + (len(opened.accepted) if opened else 0)
        except RunError:
            return 0, 0

    def is_finished(self) -> bool:
        """Whether the run is recorded as finished; its coordinator may still be about to leave."""
        try:
            with closing(Store.open(self.run_dir)) as store:
                return store.run().state == "finished"
        except RunError:
            return False

    def outcome(self) -> Outcome:
        with closing(Store.open(self.run_dir)) as store:
            rounds = store.rounds()
            accepted = [
                (record.round, device, sha256)
                for record in rounds
                for device, sha256 in sorted(store.accepted(record.round).items())
            ]
            return Outcome(tuple(record.model_id for record in rounds), tuple(accepted))

    def _command(self, name: str) -> list[str]:
        if name == "broker":
            return [self._mosquitto, "-c", str(self.folder / "mosquitto.conf")]
        command = [sys.executable, "-c", "import sys; from sparsyedge.edge.cli import main; sys.exit(main())"]
        if name == "coordinator":
            return [*command, "coordinator", "run", str(self.folder / "run.toml")]
        return [*command, "edge", "--config", str(self.folder / f"{name}.toml")]

    def _await_broker(self) -> None:
        until_s = time.monotonic() + LIMIT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1.0).close()
            except OSError:
                assert time.monotonic() < until_s, self.logs()
                time.sleep(POLL_S)
            else:
                return

    def _write_configs(self, artifacts: Path, rounds: int) -> None:
        (self.folder / "mosquitto.conf").write_text(
            f"listener {self._port} 127.0.0.1\nallow_anonymous true\npersistence true\nuser root\n"
            f"persistence_location {self.folder}/\nautosave_interval 1\nautosave_on_changes true\n"
        )
        (self.folder / "run.toml").write_text(
            f'name = "killed"\nfleet = "kill"\nartifacts = "{artifacts}"\nrun_dir = "{self.run_dir}"\n'
            f'dataset = "digits"\nrounds = {rounds}\ncohort_size = {DEVICES}\nepochs = 2\nseed = 1\n'
            f"deadline_s = 86400\neval_every = {rounds}\nbatch_size = 32\ningest_workers = 1\n"
            f"[learning_rate]\nstart = 0.1\nend = 0.05\n[broker]\nport = {self._port}\n"
        )
        for index in range(DEVICES):
            (self.folder / f"device-{index}.toml").write_text(
                f'id = "device-{index}"\nfleet = "kill"\nwork_dir = "{self.folder / "work"}"\nmeter = "none"\n'
                f'threads = 1\n[broker]\nport = {self._port}\n[data]\ndataset = "digits"\n'
                f"[data.partition]\ndevices = {4 * DEVICES}\nindex = {index}\n"
            )


def run_undisturbed(machine: Machine) -> Outcome:
    """What comes of the run when nobody dies."""
    try:
        for name in machine.names:
            machine.start(name)
        _await_end(machine)
        return machine.outcome()
    finally:
        machine.end()


def run_changing_workers(machine: Machine, counts: Sequence[int]) -> Outcome:
    """The run whose coordinator is killed now and then and goes on with another number of workers."""
    try:
        for name in machine.names:
            machine.start(name)
        for count in counts:
            _await_progress(machine, machine.progress())
            orphans = machine.workers()
            machine.kill("coordinator")
            _await_death(orphans)
            machine.set_workers(count)
            machine.start("coordinator")
        _await_end(machine)
        return machine.outcome()
    finally:
        machine.end()


def _await_death(workers: Sequence[int]) -> None:
    """Nobody tells the workers of a killed coordinator to end; they notice."""
    until_s = time.monotonic() + LIMIT_S
    for pid in workers:
        while b"sparsyedge" in _command_of(pid):
            assert time.monotonic() < until_s, f"worker {pid} has outlived its coordinator"
            time.sleep(POLL_S)


def _command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def run_killing(machine: Machine, role: Role, *, seed: int, kills: Kills) -> Outcome:
    """The run with one role killed again and again until it is over, at moments that the seed decides."""
    dice = random.Random(f"{seed}/{role}")
    try:
        for name in machine.names:
            machine.start(name)
        while not machine.is_finished():
            if role == "worker":
                _kill_worker(machine, dice=dice, kills=kills)
                continue
            victim = role if role != "device" else f"device-{dice.randrange(DEVICES)}"
            _kill_once(machine, role, victim, dice=dice, kills=kills)
        return machine.outcome()
    finally:
        machine.end()


def _kill_once(machine: Machine, role: Role, victim: str, *, dice: random.Random, kills: Kills) -> None:
    """Wait for a moment, kill, start again, and see that the run goes on before the next one dies."""
    crash_at = _draw_crash(role, dice)
    if crash_at is not None and machine.exit_code(victim) is None:
        # The point lies in a process that was told about it when it was started.
        machine.kill(victim)
        kills.by_signal[role] += 1
        machine.start(victim, crash_at=crash_at)
    died = _await_death_or(machine, victim, seconds=dice.uniform(0.0, 4.0) if crash_at is None else CRASH_S)
    if machine.is_finished():
        return
    if died:
        assert machine.exit_code(victim) == EXIT_CODE, machine.logs()
        kills.in_a_write[role] += 1
    else:
        machine.kill(victim)
        kills.by_signal[role] += 1
    if role == "broker" and dice.random() < 0.5:
        machine.wipe_broker()
        kills.store_wiped += 1
    time.sleep(dice.uniform(0.0, CALM_S))
    if machine.is_finished():  # it was killed on its way out
        return
    before, started_s = machine.progress(), time.monotonic()
    machine.start(victim)
    _await_progress(machine, before)
    kills.slowest_s = max(kills.slowest_s, time.monotonic() - started_s)


def _kill_worker(machine: Machine, *, dice: random.Random, kills: Kills) -> None:
    """Kill one worker, half of the time with a job that it has not finished; the coordinator starts another."""
    time.sleep(dice.uniform(0.0, CALM_S / 2))
    before, found = machine.progress(), machine.workers()
    if not found:
        return
    victim = dice.choice(found)
    with suppress(ProcessLookupError):
        if dice.random() < 0.5:
            os.kill(victim, signal.SIGSTOP)
            time.sleep(dice.uniform(0.0, CALM_S))
        os.kill(victim, signal.SIGKILL)
        kills.by_signal["worker"] += 1
    killed_s = time.monotonic()
    _await_progress(machine, before)
    kills.slowest_s = max(kills.slowest_s, time.monotonic() - killed_s)


def _draw_crash(role: Role, dice: random.Random) -> str | None:
    """Now and then a point inside a write, for roles that are our own programs."""
    if role == "broker" or dice.random() < 0.4:
        return None
    points = CRASH_POINTS if role == "coordinator" else CRASH_POINTS[:3]
    return f"{dice.choice(points)}:{dice.randint(1, 4)}"


def _await_death_or(machine: Machine, victim: str, *, seconds: float) -> bool:
    """Whether the victim died by itself before the time was over."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        if machine.is_finished():
            return False
        if machine.exit_code(victim) is not None:
            return True
        time.sleep(POLL_S)
    return False


def _await_progress(machine: Machine, before: tuple[int, int]) -> None:
    until_s = time.monotonic() + LIMIT_S
    while machine.progress() == before and not machine.is_finished():
        assert time.monotonic() < until_s, f"the run does not go on after {before}\n{machine.logs()}"
        code = machine.exit_code("coordinator")
        assert code in (None, 0), f"the coordinator ended with {code}\n{machine.logs()}"
        time.sleep(POLL_S)


def _await_end(machine: Machine) -> None:
    until_s = time.monotonic() + LIMIT_S
    while machine.exit_code("coordinator") is None:
        assert time.monotonic() < until_s, machine.logs()
        time.sleep(POLL_S)
    assert machine.exit_code("coordinator") == 0, machine.logs()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
