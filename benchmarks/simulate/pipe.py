"""The messages between the hub and its workers, and a device's end of the pipe.

The device protocol is unchanged: these messages carry the same topics and payloads as MQTT.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from sparsyedge.edge.protocol.channel import Event, Health, Received
from sparsyedge.edge.protocol.messages import CHUNK_BYTES

__all__ = [
    "Carry",
    "Done",
    "Message",
    "Pipe",
    "PipeLink",
    "Publish",
    "Subscribe",
    "Turn",
    "Unsubscribe",
    "decode",
    "encode",
    "matches",
]


class Turn(msgspec.Struct, frozen=True, tag="turn"):
    """To a worker: play this device until it has answered the current task."""

    device: str


class Carry(msgspec.Struct, frozen=True, tag="carry"):
    """To a worker: a message that its device asked for."""

    topic: str
    payload: bytes
    retained: bool


class Publish(msgspec.Struct, frozen=True, tag="publish"):
    """From a worker: a message from its device."""

    topic: str
    payload: bytes


class Subscribe(msgspec.Struct, frozen=True, tag="subscribe"):
    """From a worker: its device asks for these topics."""

    pattern: str


class Unsubscribe(msgspec.Struct, frozen=True, tag="unsubscribe"):
    """From a worker: its device no longer asks for these topics."""

    pattern: str


class Done(msgspec.Struct, frozen=True, tag="done"):
    """From a worker: the turn is over."""

    device: str


Message = Turn | Carry | Publish | Subscribe | Unsubscribe | Done
_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    return msgspec.msgpack.encode(message)


def decode(content: bytes) -> Message:
    return _DECODER.decode(content)


def matches(pattern: str, topic: str) -> bool:
    """Whether a topic matches a pattern; `+` stands for any one level."""
    wanted, found = pattern.split("/"), topic.split("/")
    return len(wanted) == len(found) and all(a in ("+", b) for a, b in zip(wanted, found, strict=True))


class Pipe(Protocol):
    """A worker's end of the way to the hub; Python's `Connection` is one."""

    def poll(self, timeout: float) -> bool:
        """Whether there is something to receive; waits at most `timeout` seconds."""

    def recv_bytes(self) -> bytes:
        """The next message; blocks, and raises EOFError once the hub has closed its end."""

    def send_bytes(self, buf: bytes) -> None:
        """Send a message."""


class PipeLink:
    """The channel of the device whose turn it is; a closed pipe ends the worker with EOFError."""

    def __init__(self, connection: Pipe) -> None:
        self._connection = connection
        self._patterns: set[str] = set()

    @property
    def chunk_bytes(self) -> int:
        return CHUNK_BYTES

    def open(self, timeout_s: float = 10.0) -> None:
        """The pipe is open already."""

    def close(self) -> None:
        """The pipe stays open for the next device."""

    def subscribe(self, pattern: str, *, as_published: bool = False, latest: bool = False) -> None:
        self._patterns.add(pattern)
        self._connection.send_bytes(encode(Subscribe(pattern)))

    def unsubscribe(self, pattern: str) -> None:
        self._patterns.discard(pattern)
        self._connection.send_bytes(encode(Unsubscribe(pattern)))

    def publish(self, topic: str, payload: bytes, *, retain: bool = False, timeout_s: float = 30.0) -> None:
        """Send a message. Nothing is retained: the hub itself publishes the devices' retained status."""
        self._connection.send_bytes(encode(Publish(topic, payload)))

    def receive(self, timeout_s: float) -> Event | None:
        while self._connection.poll(timeout_s):
            message = decode(self._connection.recv_bytes())
            if isinstance(message, Carry) and any(matches(pattern, message.topic) for pattern in self._patterns):
                return Received(message.topic, message.payload, message.retained)
            # The previous device asked for this message. Skip it without extending the wait.
            timeout_s = 0
        return None

    def health(self) -> Health:
        return Health()
