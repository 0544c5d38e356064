"""The peer: what Mosquitto alone moves. The same devices publish the same chunks, and one subscriber throws them away.

The subscriber has a process of its own, acknowledges every chunk, counts it and drops it. It is the leanest that we
have, this room's asyncio client; the same with what every durable receiver has to do, which is to put the chunks
together, check the hash and sync the update to disk; or the link that coordinators use (paho). As with grants, only so
many bytes are on their way at a time; the subscriber says which devices' updates have arrived, many in one message, and
others then begin.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, Final

import msgspec

from sparsyedge.benchmarks.rounds.connection import Connection, Traffic, keep_alive
from sparsyedge.benchmarks.rounds.crew import Target
from sparsyedge.benchmarks.rounds.devices import SAMPLES
from sparsyedge.benchmarks.rounds.host import Job, Told, connect_all, serve, tell
from sparsyedge.benchmarks.rounds.variants import Update, read_updates
from sparsyedge.edge.compatibility import OURS
from sparsyedge.edge.device.courier import offline_status
from sparsyedge.edge.errors import FrameError, LinkError
from sparsyedge.edge.protocol.channel import Connected, Received
from sparsyedge.edge.protocol.messages import DeviceStatus, encode
from sparsyedge.edge.protocol.mqtt import Link
from sparsyedge.edge.protocol.topics import Topics

__all__ = ["SUBSCRIBERS", "Consumption", "PeerJob", "publish_host"]

RECEIVE_MAXIMUM: Final = 20
"""What Mosquitto allows by default; a coordinator takes 4 at a time."""
POLL_S: Final = 0.05
DEVICE_LEVEL: Final = 4
"""Where a topic of a device has its name."""


class PeerJob(msgspec.Struct, frozen=True):
    """What the processes of the peer are to do beyond a Job."""

    job: Job
    chunk_bytes: int
    at_a_time: int
    """How many devices of this process upload at the same time."""
    frames: str
    """A folder with the frames of the variants, in order."""


class Consumption(msgspec.Struct, frozen=True):
    """What the subscriber is to expect."""

    port: int
    fleet: str
    devices: int
    chunks: tuple[int, ...]
    """The number of chunks of each variant."""
    folder: str
    """Where a subscriber that keeps updates puts them."""


class _Publisher:
    """A device that publishes its update when told, and nothing else."""

    def __init__(self, name: str, number: int, job: Job, topics: Topics, traffic: Traffic) -> None:
        self.number = number
        self._name = name
        self._topics = topics
        self.connection = Connection(
            self,
            job.port,
            traffic,
            identity=f"{topics.fleet}-{name}",
            patterns=(topics.reply(name), topics.round),
            will=(topics.status(name), offline_status(name)),
        )

    def connected(self) -> None:
        status = DeviceStatus(state="online", boot_id=self._name, samples=SAMPLES, speaks=OURS)
        self.connection.publish(self._topics.status(self._name).encode(), encode(status), retain=True)

    def received(self, topic: bytes, payload: memoryview) -> None:
        """Nothing comes."""

    def sent(self) -> None:
        """The window alone paces a device."""

    def upload(self, update: Update) -> None:
        size = update.blob.chunk_bytes
        for index in range(update.blob.chunks):
            topic = self._topics.upload(self._name, update.blob.sha256, index).encode()
            self.connection.publish(topic, update.frame[index * size : (index + 1) * size])


class _Progress:
    """A control connection that hears which updates have arrived, and starts the next devices."""

    def __init__(self, job: Job, at_a_time: int, topics: Topics, traffic: Traffic, updates: tuple[Update, ...]) -> None:
        self._own = range(job.first, job.first + job.count)
        self._at_a_time = at_a_time
        self._updates = updates
        self._waiting: list[_Publisher] = []
        self.connection = Connection(
            self, job.port, traffic, identity=f"progress-{job.first}", patterns=[_progress_topic(topics)]
        )

    def connected(self) -> None:
        """Nothing to say."""

    def received(self, topic: bytes, payload: memoryview) -> None:
        for number in msgspec.json.decode(payload, type=list[int]):
            if number in self._own:
                self._start_one()

    def sent(self) -> None:
        """Nothing is sent."""

    def start(self, publishers: list[_Publisher]) -> None:
        self._waiting = publishers[::-1]
        for _ in range(min(self._at_a_time, len(publishers))):
            self._start_one()

    def _start_one(self) -> None:
        if self._waiting:
            publisher = self._waiting.pop()
            publisher.upload(self._updates[publisher.number % len(self._updates)])


def publish_host(pipe: Pipe, parameters: dict[str, Any]) -> None:
    """Publish the updates of a job's devices."""
    peer = msgspec.convert(parameters, PeerJob)
    job, topics, traffic = peer.job, Topics(peer.job.fleet), Traffic()

    async def play(words: asyncio.Queue[str]) -> None:
        updates = read_updates(Path(peer.frames), chunk_bytes=peer.chunk_bytes)
        publishers = [_Publisher(name, number, job, topics, traffic) for number, name in job.names]
        progress = _Progress(job, peer.at_a_time, topics, traffic, updates)
        connections = [progress.connection, *(each.connection for each in publishers)]
        pings = asyncio.create_task(keep_alive(connections))
        tell(pipe, Told("started"))
        while (word := await words.get()) != "leave":
            if word == "join":
                await connect_all(connections)
                tell(pipe, Told("ready"))
            elif word == "go":
                progress.start(publishers)
        pings.cancel()
        for connection in connections:
            connection.close()

    serve(pipe, play)


class _Count:
    """Counts chunks by device, and tells the parent when all have arrived."""

    def __init__(self, pipe: Pipe, expected: Consumption) -> None:
        self.arrived: list[int] = []
        """Devices whose updates are complete, until somebody takes them."""
        self._pipe = pipe
        self._expected = expected
        self._chunks: dict[str, int] = {}
        self._complete = 0
        self._bytes = 0

    def add(self, topic: str, payload_bytes: int) -> None:
        name = topic.split("/")[DEVICE_LEVEL]
        count = self._chunks[name] = self._chunks.get(name, 0) + 1
        self._bytes += payload_bytes
        number, chunks = int(name.rpartition("-")[2]), self._expected.chunks
        if count != chunks[number % len(chunks)]:
            return
        self.arrived.append(number)
        self._complete += 1
        if self._complete == self._expected.devices:
            tell(self._pipe, Told("done", at_unix_s=time.time(), traffic=(0, 0, 0, self._bytes, 0)))

    def take(self) -> bytes:
        """The message that lets other devices begin."""
        arrived, self.arrived = self.arrived, []
        return msgspec.json.encode(arrived)


class _Kept:
    """Updates in the making; each is on disk before anybody hears that it has arrived."""

    def __init__(self, folder: Path, chunks: tuple[int, ...]) -> None:
        self._folder = folder
        self._chunks = chunks
        self._parts: dict[str, list[bytes]] = {}

    def put(self, topic: str, payload: memoryview) -> None:
        device, _, sha256, _ = topic.split("/")[DEVICE_LEVEL:]
        # Within a connection, chunks arrive in order.
        parts = self._parts.setdefault(device, [])
        parts.append(bytes(payload))
        if len(parts) < self._chunks[int(device.rpartition("-")[2]) % len(self._chunks)]:
            return
        content = b"".join(self._parts.pop(device))
        if hashlib.sha256(content).hexdigest() != sha256:
            raise FrameError(f"the update of {device} is not the one that it announced")
        with (self._folder / device).open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


class _Subscriber:
    """Drops chunks once they are counted."""

    def __init__(self, pipe: Pipe, expected: Consumption, *, keeps: bool = False) -> None:
        self._topics = Topics(expected.fleet)
        self._count = _Count(pipe, expected)
        self._kept = _Kept(Path(expected.folder), expected.chunks) if keeps else None
        self._is_told = True
        self.connection = Connection(
            self,
            expected.port,
            Traffic(),
            identity="subscriber",
            patterns=[self._topics.upload("+", "+", "+")],
            receive_maximum=RECEIVE_MAXIMUM,
        )

    def connected(self) -> None:
        """Nothing to say."""

    def sent(self) -> None:
        """Progress goes out by itself."""

    def received(self, topic: bytes, payload: memoryview) -> None:
        name = topic.decode()
        if self._kept is not None:
            self._kept.put(name, payload)
        self._count.add(name, len(payload))
        if self._count.arrived and self._is_told:
            self._is_told = False
            asyncio.get_running_loop().call_soon(self._tell_progress)

    def _tell_progress(self) -> None:
        self._is_told = True
        self.connection.publish(_progress_topic(self._topics).encode(), self._count.take())


def subscribe_with_link(pipe: Pipe, parameters: dict[str, Any]) -> None:
    """Take every chunk with a coordinator's link until all updates have arrived."""
    expected = msgspec.convert(parameters, Consumption)
    topics, count = Topics(expected.fleet), _Count(pipe, expected)
    link = Link("127.0.0.1", expected.port, identity="subscriber")
    link.subscribe(topics.upload("+", "+", "+"))
    tell(pipe, Told("started"))
    try:
        pipe.recv_bytes()  # join
        link.open()
        is_ready = False
        while not pipe.poll(0):
            event = link.receive(POLL_S)
            if isinstance(event, Received):
                count.add(event.topic, len(event.payload))
            elif isinstance(event, Connected) and not is_ready:
                is_ready = True
                tell(pipe, Told("ready"))
            if count.arrived:
                link.publish(_progress_topic(topics), count.take())
    except (EOFError, OSError):
        pass  # the parent is gone
    except LinkError as error:
        tell(pipe, Told("failed", problem=str(error)))
    finally:
        link.close()


def subscribe_lean(pipe: Pipe, parameters: dict[str, Any]) -> None:
    """Take every chunk with the lean client until all updates have arrived."""
    _subscribe(pipe, msgspec.convert(parameters, Consumption), keeps=False)


def subscribe_and_keep(pipe: Pipe, parameters: dict[str, Any]) -> None:
    """The same, and keep every update."""
    _subscribe(pipe, msgspec.convert(parameters, Consumption), keeps=True)


def _subscribe(pipe: Pipe, expected: Consumption, *, keeps: bool) -> None:
    async def play(words: asyncio.Queue[str]) -> None:
        subscriber = _Subscriber(pipe, expected, keeps=keeps)
        tell(pipe, Told("started"))
        while (word := await words.get()) != "leave":
            if word == "join":
                await subscriber.connection.open()
                tell(pipe, Told("ready"))
        subscriber.connection.close()

    serve(pipe, play)


def _progress_topic(topics: Topics) -> str:
    return f"{topics.root}/progress"


SUBSCRIBERS: Final[dict[str, tuple[Target, str]]] = {
    "lean": (
        subscribe_lean,
        f"our asyncio client in a process of its own, QoS 1, receive maximum {RECEIVE_MAXIMUM}, payloads dropped",
    ),
    "durable": (
        subscribe_and_keep,
        f"our asyncio client in a process of its own, QoS 1, receive maximum {RECEIVE_MAXIMUM}, every update put "
        f"together, its hash checked, written and synced",
    ),
    "link": (
        subscribe_with_link,
        "a coordinator's link (paho) in a process of its own, QoS 1, receive maximum 4, payloads dropped",
    ),
}
"""By name: what the process runs, and what it is."""
