"""The leader's side of the worker processes: gives each one job at a time, and replaces one that dies."""

from __future__ import annotations

import itertools
import logging
import os
import socket
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from sparsyedge.coordinator.aggregation.round_base import RoundBase
from sparsyedge.coordinator.aggregation.round_entries import EntryFile, RoundEntries
from sparsyedge.coordinator.aggregation_config import AggregationConfig
from sparsyedge.coordinator.workers import jobs
from sparsyedge.coordinator.workers.shared_model import SharedModel
from sparsyedge.edge.errors import RunError
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.tensors import FloatArray

__all__ = ["WorkerPool"]

log = logging.getLogger(__name__)

MOST_DEATHS = 3
"""A job that takes down this many workers is given up."""
END_S = 5.0
COMMAND = "from sparsyedge.coordinator.workers.worker import main; main()"


@dataclass
class _Task:
    message: jobs.Verify | jobs.Sum | jobs.Combine | jobs.Compare | jobs.UnitSums
    frame: bytes | None = None
    deaths: int = 0


class _Worker:
    """One process, its socket, and the job that it has."""

    def __init__(self, number: int, setup: jobs.Setup) -> None:
        self.number = number
        ours, theirs = socket.socketpair()
        with theirs:
            handles = (theirs.fileno(), setup.model, *setup.files)
            # Threads of BLAS would compete with the other workers. Modules never come from the present folder.
            settings = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
            self.process = subprocess.Popen(
                [sys.executable, "-c", COMMAND, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=handles,
                env={**os.environ, **settings},
            )
        self.link = Connection(ours.detach())
        self.task: _Task | None = None
        self.tell(setup)

    def tell(self, message: jobs.Setup | jobs.Begin) -> None:
        """Send what needs no answer; whoever gives the next job finds out if the process is dead."""
        with suppress(OSError):
            self.link.send_bytes(jobs.encode(message))

    def give(self, task: _Task) -> None:
        self.task = task
        self.link.send_bytes(jobs.encode(task.message))
        if task.frame is not None:
            self.link.send_bytes(task.frame)

    def end(self) -> None:
        """Close the socket, which ends the process."""
        self.link.close()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class WorkerPool:
    """Worker processes that share the model and the round's files of entries; each writes one of the files.

    `submit` and `collect` are for updates as they arrive; `means`, `combinations`, `comparisons` and
    `squares_of_unit_sums` block until all is done.
    """

    def __init__(self, count: int, *, run: str, manifest: Manifest, model: SharedModel, base: RoundBase, folder: Path):
        self._run = run
        self._manifest = msgspec.json.encode(manifest)
        self._model = model
        self.files = [EntryFile.create(folder, base, number=number) for number in range(count)]
        self._ends = [0] * count
        self._model_id = ""
        self._numbers = itertools.count(1)
        self._queue: deque[_Task] = deque()
        self._answers: deque[jobs.Answer] = deque()
        self._workers = [_Worker(number, self._setup(number)) for number in range(count)]
        # A run that fails leaves no process behind.
        self.close = weakref.finalize(self, _end_all, self._workers)
        """End all workers."""

    @property
    def pids(self) -> list[int]:
        """The ids of the worker processes."""
        return [worker.process.pid for worker in self._workers]

    def begin(self, model_id: str) -> None:
        """Start a round from the model that is in the shared memory now; forgets the last round's updates."""
        self._model_id = model_id
        self._ends = [0] * len(self._workers)
        self._queue.clear()
        self._answers.clear()
        for worker in self._workers:
            worker.tell(jobs.Begin(model_id=model_id))

    def submit(self, frame: bytes, *, round_number: int, sha256: str | None = None) -> int:
        """Have an update verified, its promised hash too if it is given; returns the number of the job."""
        number = next(self._numbers)
        # `_hand_out` says where its entries go: that depends on the worker.
        self._queue.append(_Task(jobs.Verify(job=number, round=round_number, end=0, sha256=sha256), frame))
        self._hand_out()
        return number

    def collect(self, timeout_s: float = 0.0) -> list[jobs.Answer]:
        """The answers that have come, waiting for one if there is none."""
        self._hand_out()
        if not self._answers:
            self._receive(timeout_s)
        answers = list(self._answers)
        self._answers.clear()
        return answers

    # ---- the end of a round ------------------------------------------------------------------------------------------

    def means(
        self, updates: RoundEntries, stretches: Sequence[tuple[int, int]], *, total: float, senders_only: bool
    ) -> Iterator[tuple[int, FloatArray]]:
        """The start and the mean of the weights' stretches, in order; neighbours that one worker summed come as one."""
        members = [jobs.PackedMember.of(member) for member in updates.members]
        asked = [
            jobs.Sum(job=next(self._numbers), stretches=part, members=members, total=total, senders_only=senders_only)
            for part in self._shared(stretches)
        ]
        return self._parts(asked, updates.block)

    def combinations(
        self, updates: RoundEntries, stretches: Sequence[tuple[int, int]], config: AggregationConfig
    ) -> Iterator[tuple[int, FloatArray]]:
        """What the run's rule makes of the weights' stretches, as `means` does."""
        members = [jobs.PackedMember.of(member) for member in updates.members]
        asked = [
            jobs.Combine(job=next(self._numbers), stretches=part, members=members, config=config)
            for part in self._shared(stretches)
        ]
        return self._parts(asked, updates.block)

    def _shared(self, stretches: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
        """Neighbouring stretches for each worker."""
        each = max(1, -(-len(stretches) // len(self._workers)))
        return [list(stretches[start : start + each]) for start in range(0, len(stretches), each)]

    def _parts(self, asked: Sequence[jobs.Sum | jobs.Combine], block: int) -> Iterator[tuple[int, FloatArray]]:
        for message, answer in zip(asked, self._ask(asked), strict=True):
            assert isinstance(answer, jobs.Combined)
            whole = np.zeros(sum(answer.sizes), dtype=np.float32)
            whole[np.frombuffer(answer.positions, dtype=np.uint32)] = np.frombuffer(answer.values, dtype=np.float32)
            yield message.stretches[0][0] * block, whole

    def comparisons(
        self, updates: RoundEntries, stretches: Sequence[tuple[int, int]], peers: Sequence[int]
    ) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """What each of these stretches adds to the products and to the squares of devices, in order."""
        members = [jobs.PackedMember.of(member) for member in updates.members]
        asked = [
            jobs.Compare(job=next(self._numbers), stretch=stretch, members=members, peers=list(peers))
            for stretch in stretches
        ]
        for answer in self._ask(asked):
            assert isinstance(answer, jobs.Compared)
            products = np.frombuffer(answer.products).reshape(len(members), len(peers))
            yield products, np.frombuffer(answer.squares)

    def squares_of_unit_sums(
        self, updates: RoundEntries, stretches: Sequence[tuple[int, int]], inverse: NDArray[np.float64]
    ) -> Iterator[NDArray[np.float64]]:
        """What each stretch adds to the squares of the sums of unit vectors, by weight, in order."""
        members = [jobs.PackedMember.of(member) for member in updates.members]
        asked = [
            jobs.UnitSums(job=next(self._numbers), stretches=part, members=members, inverse=inverse.tobytes())
            for part in self._shared(stretches)
        ]
        for message, answer in zip(asked, self._ask(asked), strict=True):
            assert isinstance(answer, jobs.UnitSquares)
            yield from np.frombuffer(answer.squares).reshape(len(message.stretches), -1)

    def _ask(self, asked: Sequence[jobs.Sum | jobs.Combine | jobs.Compare | jobs.UnitSums]) -> Iterator[jobs.Answer]:
        """The answers, in the order of the jobs."""
        self._queue.extend(_Task(message) for message in asked)
        found: dict[int, jobs.Answer] = {}
        for message in asked:
            while message.job not in found:
                for answer in self.collect(timeout_s=1.0):
                    found[answer.job] = answer
            answer = found.pop(message.job)
            if isinstance(answer, jobs.Refused):
                raise RunError(f"a worker process could not do its part of the round: {answer.reason}")
            yield answer

    # ---- processes ---------------------------------------------------------------------------------------------------

    def _setup(self, number: int) -> jobs.Setup:
        return jobs.Setup(
            run=self._run,
            manifest=self._manifest,
            model=self._model.handle,
            files=tuple(file.handle for file in self.files),
            own=number,
        )

    def _hand_out(self) -> None:
        for worker in list(self._workers):
            if not self._queue or worker.task is not None:
                continue
            # One that died without a job must not count against the next job.
            free = worker if worker.process.poll() is None else self._replace(worker)
            task = self._queue.popleft()
            if isinstance(task.message, jobs.Verify):
                task.message = msgspec.structs.replace(task.message, end=self._ends[free.number])
            try:
                free.give(task)
            except OSError:
                self._replace(free)

    def _receive(self, timeout_s: float) -> None:
        ready = wait([worker.link for worker in self._workers if worker.task], timeout_s)
        for worker in self._workers:
            if worker.link not in ready:
                continue
            try:
                answer = jobs.decode_answer(worker.link.recv_bytes())
            except (EOFError, OSError):
                self._replace(worker)
                continue
            worker.task = None
            if isinstance(answer, jobs.Broken):
                raise OSError(answer.code, answer.reason)
            if isinstance(answer, jobs.Verified):
                self._ends[worker.number] = answer.end
            self._answers.append(answer)
        self._hand_out()

    def _replace(self, worker: _Worker) -> _Worker:
        """Start another process in place of one that has died; its job goes to the next worker that is free."""
        worker.end()
        status = worker.process.returncode
        log.warning("worker process %d ended with status %s; starting another", worker.number, status)
        fresh = self._workers[self._workers.index(worker)] = _Worker(worker.number, self._setup(worker.number))
        fresh.tell(jobs.Begin(model_id=self._model_id))
        if (task := worker.task) is not None:
            task.deaths += 1
            if task.deaths < MOST_DEATHS:
                self._queue.appendleft(task)
            else:
                reason = f"{MOST_DEATHS} processes in turn did not survive it"
                self._answers.append(jobs.Refused(job=task.message.job, reason=reason))
        return fresh


def _end_all(workers: list[_Worker]) -> None:
    # All at once first: each may have a job to finish.
    for worker in workers:
        worker.link.close()
    for worker in workers:
        worker.end()
