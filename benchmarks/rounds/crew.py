"""The processes beside the coordinator: they are started with a pipe each, and say when they are ready and done."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

import msgspec

from sparsyedge.benchmarks.rounds.host import Told
from sparsyedge.benchmarks.rounds.usage import cpu_s
from sparsyedge.edge.errors import RunError

__all__ = ["Crew", "Target", "started"]

START_LIMIT_S = 300.0
LEAVE_LIMIT_S = 20.0
POLL_S = 0.2

Target = Callable[[Pipe, dict[str, Any]], None]
"""What a process runs: it gets its pipe and its parameters."""


class Crew:
    """Started processes."""

    def __init__(self, processes: Sequence[BaseProcess], pipes: Sequence[Pipe]) -> None:
        self._processes = processes
        self._pipes = pipes

    def say(self, word: str) -> None:
        """Tell all of them."""
        for pipe in self._pipes:
            pipe.send_bytes(word.encode())

    def cpu_s(self) -> float:
        """Processor seconds that they have used."""
        return sum(cpu_s(process.pid) for process in self._processes if process.pid is not None)

    def await_all(
        self,
        what: str,
        *,
        limit_s: float,
        on: tuple[str, Callable[[], None]] | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> list[Told]:
        """Every process's word of this kind, in order; raises RunError if one fails or the time is over.

        With `on`, calls a function once all have said another word. Calls `check` now and then, which may raise.
        """
        heard: dict[str, dict[int, Told]] = {}
        until_s = time.monotonic() + limit_s
        while len(heard.get(what, {})) < len(self._pipes):
            for pipe in wait(list(self._pipes), POLL_S):
                assert isinstance(pipe, Pipe)
                told = self._hear(pipe)
                words = heard.setdefault(told.what, {})
                words[self._pipes.index(pipe)] = told
                if on is not None and told.what == on[0] and len(words) == len(self._pipes):
                    on[1]()
            check()
            if time.monotonic() > until_s:
                said = len(heard.get(what, {}))
                raise RunError(
                    f"only {said} of {len(self._pipes)} processes of devices were {what} after {limit_s:g} s; "
                    f"raise --limit, or measure fewer devices"
                )
        return [heard[what][index] for index in range(len(self._pipes))]

    def _hear(self, pipe: Pipe) -> Told:
        try:
            told = msgspec.json.decode(pipe.recv_bytes(), type=Told)
        except (EOFError, OSError) as error:
            raise RunError("a process of devices has died; is the machine out of memory?") from error
        if told.what == "failed":
            raise RunError(f"a process of devices failed: {told.problem}")
        return told


@contextmanager
def started(target: Target, parameters: Sequence[msgspec.Struct]) -> Iterator[Crew]:
    """A process per set of parameters; they leave when the block ends."""
    context = multiprocessing.get_context("spawn")
    processes: list[BaseProcess] = []
    pipes: list[Pipe] = []
    try:
        for each in parameters:
            ours, theirs = context.Pipe()
            # Plain values: nothing of ours is pickled.
            process = context.Process(target=target, args=(theirs, msgspec.to_builtins(each)), daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        crew = Crew(processes, pipes)
        crew.await_all("started", limit_s=START_LIMIT_S)
        yield crew
    finally:
        for pipe in pipes:
            pipe.close()
        for started_ in processes:
            started_.join(LEAVE_LIMIT_S)
            if started_.is_alive():
                started_.kill()
                started_.join()
            started_.close()
