"""A process full of light devices; its parent tells it through a pipe when to join, when to begin and when to leave."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, Final

import msgspec

from sparsyedge.benchmarks.rounds.connection import Connection, Traffic, keep_alive
from sparsyedge.benchmarks.rounds.devices import LightDevice, Observed, Tasks
from sparsyedge.benchmarks.rounds.variants import Update, UpdateSource, keep_updates
from sparsyedge.edge.errors import SparsyedgeError
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.protocol.chunks import Assembly, parse_index
from sparsyedge.edge.protocol.messages import RoundTask
from sparsyedge.edge.protocol.topics import Topics
from sparsyedge.edge.wire.codecs import Codec

__all__ = ["Job", "Told", "connect_all", "host", "serve", "tell"]

CONNECTING: Final = 32
"""How many devices of a process connect at the same time: the broker's queue of new connections holds a hundred."""
LEAVE_S: Final = 1.0


class Job(msgspec.Struct, frozen=True):
    """What a process of devices is to do."""

    artifacts: str
    port: int
    fleet: str
    first: int
    count: int
    variants: int
    codec: Codec
    rounds: int
    """The last round that the devices take part in."""
    frames: str = ""
    """A folder where the last round's updates are kept; empty if nobody needs them."""

    @property
    def names(self) -> list[tuple[int, str]]:
        return [(number, f"device-{number:05d}") for number in range(self.first, self.first + self.count)]


class Told(msgspec.Struct, frozen=True):
    """What a process of devices tells its parent."""

    what: str
    """`started`, `ready`, `accepted`, `done` or `failed`."""
    round: int = 0
    at_unix_s: float = 0.0
    observed: tuple[Observed, ...] = ()
    traffic: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)
    """Messages up and down, bytes up and down, connections lost: since the previous round was done."""
    update_bytes: tuple[int, ...] = ()
    """The size of each variant."""
    chunk_bytes: int = 0
    model_bytes: int = 0
    task_bytes: int = 0
    problem: str = ""


def tell(pipe: Pipe, told: Told) -> None:
    """Send it to the parent."""
    pipe.send_bytes(msgspec.json.encode(told))


def serve(pipe: Pipe, main: Callable[[asyncio.Queue[str]], Awaitable[None]]) -> None:
    """Run `main` with a queue of the parent's words; a closed pipe counts as `leave`. Tells the parent of a failure."""

    async def run() -> None:
        words: asyncio.Queue[str] = asyncio.Queue()

        def read() -> None:
            try:
                words.put_nowait(pipe.recv_bytes().decode())
            except (EOFError, OSError):
                asyncio.get_running_loop().remove_reader(pipe.fileno())
                words.put_nowait("leave")

        asyncio.get_running_loop().add_reader(pipe.fileno(), read)
        await main(words)

    try:
        asyncio.run(run())
    except (SparsyedgeError, OSError) as error:
        tell(pipe, Told("failed", problem=f"{type(error).__name__}: {error}"))


async def connect_all(connections: Iterable[Connection]) -> None:
    """Open all, a few at a time; raises the first failure."""
    places = asyncio.Semaphore(CONNECTING)

    async def open_one(connection: Connection) -> None:
        async with places:
            await connection.open()

    await asyncio.gather(*(open_one(connection) for connection in connections))


def host(pipe: Pipe, job: dict[str, Any]) -> None:
    """Play the devices of a job until the parent says leave."""
    playing = _Host(pipe, msgspec.convert(job, Job))
    serve(pipe, playing.play)


class _Host:
    def __init__(self, pipe: Pipe, job: Job) -> None:
        self._pipe = pipe
        self._job = job
        self._topics = Topics(job.fleet)
        self.round_topic = self._topics.round.encode()
        self._source = UpdateSource(Artifacts.load(Path(job.artifacts)), count=job.variants, codec=job.codec)
        self._traffic = Traffic()
        self._tasks = Tasks()
        self._devices = [
            LightDevice(
                name, number, port=job.port, topics=self._topics, traffic=self._traffic, tasks=self._tasks, host=self
            )
            for number, name in job.names
        ]
        self._present: RoundTask | None = None
        self._prepared = False
        self._without: set[str] = set()
        self._updates: tuple[Update, ...] = ()
        self._model_bytes = 0
        self._fetched: tuple[Assembly, asyncio.Future[bytes]] | None = None
        self._accepted = self._finished = 0
        self._before = self._traffic.counts()
        self._making: set[asyncio.Task[None]] = set()

    async def play(self, words: asyncio.Queue[str]) -> None:
        pings = asyncio.create_task(keep_alive([device.connection for device in self._devices]))
        tell(self._pipe, Told("started"))
        while (word := await words.get()) != "leave":
            if word == "join":
                await connect_all(device.connection for device in self._devices)
            elif word == "go":
                self._begin()
        pings.cancel()
        for device in self._devices:
            device.leave()
        await asyncio.sleep(LEAVE_S)

    # ---- what devices report -----------------------------------------------------------------------------------------

    def has_task(self, device: LightDevice, task: RoundTask) -> None:
        """Once every device has the round's task, make the updates and tell the parent."""
        if task.state != "open" or task.round > self._job.rounds:
            return
        if self._present is None or task.round != self._present.round:
            self._present, self._prepared = task, False
            self._without = {each.name for each in self._devices}
        self._without.discard(device.name)
        if not self._without and not self._prepared:
            self._prepared = True
            making = asyncio.get_running_loop().create_task(self._prepare(task))
            self._making.add(making)
            making.add_done_callback(self._making.discard)

    def took_chunk(self, topic: bytes, payload: memoryview) -> None:
        """Assemble the round's model."""
        if self._fetched is None or not payload:
            return
        assembly, whole = self._fetched
        assembly.put(parse_index(topic.rpartition(b"/")[2].decode()), bytes(payload))
        if assembly.complete and not whole.done():
            whole.set_result(assembly.content())

    def was_accepted(self) -> None:
        self._accepted += 1
        if self._accepted == len(self._devices):
            tell(self._pipe, Told("accepted", round=self._round, at_unix_s=time.time()))

    def has_finished(self) -> None:
        self._finished += 1
        if self._finished == len(self._devices):
            observed = tuple(device.observed() for device in self._devices)
            tell(self._pipe, Told("done", round=self._round, observed=observed, traffic=self._exchanged()))

    # ---- a round -----------------------------------------------------------------------------------------------------

    @property
    def _round(self) -> int:
        return self._present.round if self._present else 0

    async def _prepare(self, task: RoundTask) -> None:
        """Fetch the model if it is not the checkpoint's, and make the updates; the loop goes on meanwhile."""
        model = None if self._source.is_initial(task.model_id) else await self._fetch(task)
        self._updates = await asyncio.to_thread(
            self._source.make,
            run=task.run,
            round_number=task.round,
            model_id=task.model_id,
            chunk_bytes=task.model.chunk_bytes,
            model=model,
        )
        if self._job.frames and task.round == self._job.rounds:
            keep_updates(self._updates, Path(self._job.frames))
        tell(
            self._pipe,
            Told(
                "ready",
                round=task.round,
                update_bytes=tuple(update.blob.bytes for update in self._updates),
                chunk_bytes=task.model.chunk_bytes,
                model_bytes=task.model.bytes,
                task_bytes=self._tasks.bytes,
            ),
        )

    async def _fetch(self, task: RoundTask) -> bytes:
        """The first device fetches the model for all of the process."""
        whole: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._fetched = Assembly(task.model), whole
        pattern, connection = self._topics.chunk(task.model.sha256, "+"), self._devices[0].connection
        connection.subscribe(pattern)
        try:
            return await whole
        finally:
            connection.unsubscribe(pattern)
            self._fetched = None

    def _begin(self) -> None:
        assert self._present is not None, "the parent says go once all are ready"
        self._accepted = self._finished = 0
        for device in self._devices:
            device.begin(self._present, self._updates[device.number % len(self._updates)])

    def _exchanged(self) -> tuple[int, int, int, int, int]:
        """The traffic of a whole round: its task and the end of the previous one included."""
        now = self._traffic.counts()
        self._before, before = now, self._before
        up, down, bytes_up, bytes_down, lost = (after - before for after, before in zip(now, before, strict=True))
        return up, down, bytes_up, bytes_down, lost
