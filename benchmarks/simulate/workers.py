"""The worker processes of `--link memory`, as the hub sees them."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from types import FrameType

from sparsyedge.benchmarks.simulate.pipe import Done, Message, Turn, decode, encode
from sparsyedge.benchmarks.simulate.simulated_device import Setup
from sparsyedge.benchmarks.simulate.worker import work
from sparsyedge.edge.errors import RunError

__all__ = ["ONE_THREAD", "core_count", "environment", "signals_deferred", "started_processes"]

STOP_LIMIT_S = 20.0
# One thread per worker: numpy's own threads would compete with the other workers for the cores.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class ProcessWorker:
    """One process and its pipe; messages to it never block the hub."""

    def __init__(self, setup: Setup) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.device: str | None = None
        self.patterns: set[str] = set()
        self._process = context.Process(target=work, args=(theirs, setup), daemon=True)
        with environment(ONE_THREAD):
            self._process.start()
        theirs.close()
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._sender = threading.Thread(target=self._send_all, name="simulate-sender", daemon=True)
        self._sender.start()

    def send(self, message: Message) -> None:
        """Queue a message."""
        self._outgoing.put(encode(message))

    def give_turn(self, device: str) -> None:
        self.device = device
        self.patterns.clear()
        self.send(Turn(device))

    def receive(self) -> Message:
        """The next message; raises RunError if the process has ended."""
        try:
            message = decode(self.connection.recv_bytes())
        except (EOFError, OSError) as error:
            self._process.join(STOP_LIMIT_S)
            raise RunError(
                f"a worker process ended with exit code {self._process.exitcode} while it was {self.device or 'idle'}; "
                f"if the machine ran out of memory, use fewer with --workers"
            ) from error
        if isinstance(message, Done):
            self.device = None
            self.patterns.clear()
        return message

    def stop(self) -> None:
        """Close the pipe to end the process; kill it if it does not end."""
        self._outgoing.put(None)
        self._sender.join(STOP_LIMIT_S)
        self.connection.close()
        if self.device is not None:
            self._process.terminate()
        self._process.join(STOP_LIMIT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()

    def _send_all(self) -> None:
        while (content := self._outgoing.get()) is not None:
            try:
                self.connection.send_bytes(content)
            except OSError:  # it has died, which `receive` notices
                return


class ProcessWorkers:
    """All worker processes."""

    def __init__(self, workers: list[ProcessWorker]) -> None:
        self.all = workers

    def idle(self) -> ProcessWorker | None:
        """An idle worker."""
        return next((worker for worker in self.all if worker.device is None), None)

    @property
    def busy(self) -> bool:
        return any(worker.device is not None for worker in self.all)

    def ready(self, timeout_s: float) -> list[ProcessWorker]:
        """The workers with messages to read; waits at most `timeout_s`."""
        by_connection: dict[Connection, ProcessWorker] = {worker.connection: worker for worker in self.all}
        return [by_connection[item] for item in wait(list(by_connection), timeout_s) if isinstance(item, Connection)]


def core_count() -> int:
    """How many cores this machine has."""
    return os.cpu_count() or 1


@contextmanager
def started_processes(count: int, setup: Setup) -> Iterator[ProcessWorkers]:
    """Worker processes that run during the block; leaves none behind."""
    workers: list[ProcessWorker] = []
    try:
        for _ in range(count):
            with signals_deferred():
                workers.append(ProcessWorker(setup))
        yield ProcessWorkers(workers)
    finally:
        for worker in workers:
            worker.stop()


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back during the block, which starts a process and notes it.

    A child whose parent ends before it has handed over the arguments prints a traceback, and one that nobody has noted
    is not ended. Blocking the signals instead would block them in the child too.
    """
    if threading.current_thread() is not threading.main_thread():  # only that thread hears signals
        yield
        return
    arrived: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        arrived.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for each in arrived:
            signal.raise_signal(each)


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Set these environment variables for processes that start in the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
