"""A device's connection to the broker in asyncio: many of them share one thread.

It does what a device's link does: QoS 1, a window of unacknowledged messages, a keep-alive, and it connects again
after a loss, renews its subscriptions and repeats what was not acknowledged.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Iterable
from typing import Final, Protocol

from sparsyedge.benchmarks.rounds import mqtt_packets as mqtt
from sparsyedge.edge.errors import LinkError
from sparsyedge.edge.protocol.in_flight import WINDOW_BYTES, WINDOW_MESSAGES
from sparsyedge.edge.protocol.mqtt import RECONNECT_JITTER_S
from sparsyedge.edge.protocol.mqtt_client import (
    KEEPALIVE_S,
    MAX_PACKET_BYTES,
    MESSAGE_EXPIRY_S,
    RECEIVE_MAXIMUM,
    RECONNECT_MIN_S,
    SESSION_EXPIRY_S,
    Will,
)

__all__ = ["Connection", "Owner", "Traffic", "keep_alive"]

READ_BYTES: Final = 256 * 1024
SMALL_BYTES: Final = 4096
"""Payloads up to this size are copied into one write with their header."""

# Every connection of a process reads into it: what arrives is handled before anything else is read.
_ARRIVED = memoryview(bytearray(READ_BYTES))


class Owner(Protocol):
    """Gets a connection's events. None may block."""

    def connected(self) -> None:
        """All subscriptions are confirmed, for the first time or again after a loss."""

    def received(self, topic: bytes, payload: memoryview) -> None:
        """A message arrived; the payload is valid during this call only."""

    def sent(self) -> None:
        """Every message that was published is on its way, though perhaps not acknowledged."""


class Traffic:
    """What a process has exchanged with the broker: messages (PUBLISH packets) and all bytes of the streams."""

    def __init__(self) -> None:
        self.messages_up = self.messages_down = 0
        self.bytes_up = self.bytes_down = 0
        self.lost_connections = 0

    def counts(self) -> tuple[int, int, int, int, int]:
        return self.messages_up, self.messages_down, self.bytes_up, self.bytes_down, self.lost_connections


class Connection(asyncio.BufferedProtocol):
    """One MQTT connection; use it within one event loop."""

    def __init__(
        self,
        owner: Owner,
        port: int,
        traffic: Traffic,
        *,
        identity: str,
        patterns: Iterable[str],
        will: Will | None = None,
        receive_maximum: int = RECEIVE_MAXIMUM,
    ) -> None:
        self.refusal = ""
        """Why the broker does not serve this connection."""
        self._owner = owner
        self._port = port
        self._traffic = traffic
        self._patterns = list(patterns)
        self._hello = mqtt.connect(
            identity,
            keepalive_s=KEEPALIVE_S,
            will=will,
            receive_maximum=receive_maximum,
            max_packet_bytes=MAX_PACKET_BYTES,
            session_expiry_s=SESSION_EXPIRY_S if will else 0,
        )
        self._transport: asyncio.Transport | None = None
        self._packets = mqtt.Packets(MAX_PACKET_BYTES)
        self._queue: deque[tuple[bytes, bytes | memoryview, bool]] = deque()
        self._unacknowledged: dict[int, tuple[bytes, bytes | memoryview, bool]] = {}
        self._unacknowledged_bytes = 0
        self._unanswered: set[int] = set()
        self._last_packet = 0
        self._up = self._closing = False
        self._spoke_s = 0.0
        self._ready: asyncio.Future[None] | None = None

    # ---- what the owner does -----------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect and subscribe; raises LinkError if the broker refuses, OSError if there is none."""
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        await loop.create_connection(lambda: self, "127.0.0.1", self._port)
        await self._ready

    def publish(self, topic: bytes, payload: bytes | memoryview, *, retain: bool = False) -> None:
        """Send a message as soon as the window has room."""
        self._queue.append((topic, payload, retain))
        self._pump()

    def subscribe(self, pattern: str) -> None:
        """Subscribe, now and after a loss."""
        self._patterns.append(pattern)
        if self._up:
            self._write(mqtt.subscribe(self._next_packet(), pattern))

    def unsubscribe(self, pattern: str) -> None:
        self._patterns.remove(pattern)
        if self._up:
            self._write(mqtt.unsubscribe(self._next_packet(), pattern))

    def close(self) -> None:
        """Disconnect cleanly: the broker sends no last will."""
        self._closing = True
        if self._transport is not None:
            self._write(mqtt.DISCONNECT)
            self._transport.close()

    def ping_if_silent(self, now_s: float) -> None:
        """Keep the connection alive."""
        if self._up and now_s - self._spoke_s >= KEEPALIVE_S:
            self._write(mqtt.PINGREQ)

    # ---- what asyncio calls ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._packets = mqtt.Packets(MAX_PACKET_BYTES)
        self._write(self._hello)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _ARRIVED

    def buffer_updated(self, nbytes: int) -> None:
        self._traffic.bytes_down += nbytes
        for first, body in self._packets.feed(_ARRIVED[:nbytes]):
            self._take(first, body)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport, self._up = None, False
        if self._closing:
            return
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(
                LinkError(f"the broker does not serve a device: {self.refusal or exc or 'closed'}")
            )
            return
        self._traffic.lost_connections += 1
        asyncio.get_running_loop().call_later(
            RECONNECT_MIN_S + random.uniform(0, RECONNECT_JITTER_S), self._connect_again
        )

    def _connect_again(self) -> None:
        if not self._closing:
            loop = asyncio.get_running_loop()
            attempt = loop.create_task(loop.create_connection(lambda: self, "127.0.0.1", self._port))
            attempt.add_done_callback(self._check_attempt)

    def _check_attempt(self, attempt: asyncio.Task[object]) -> None:
        if not attempt.cancelled() and attempt.exception() is not None:
            asyncio.get_running_loop().call_later(RECONNECT_MIN_S, self._connect_again)

    # ---- packets -----------------------------------------------------------------------------------------------------

    def _take(self, first: int, body: memoryview) -> None:
        match first >> 4:
            case mqtt.PUBLISH:
                message = mqtt.read_publish(first, body)
                if message.packet:
                    self._write(mqtt.puback(message.packet))
                self._traffic.messages_down += 1
                self._owner.received(message.topic, message.payload)
            case mqtt.PUBACK:
                self._acknowledge(mqtt.packet_id(body))
            case mqtt.CONNACK if refused := mqtt.reasons(mqtt.CONNACK, body):
                self.refusal = f"refused with code {refused[0]:#x}"
            case mqtt.CONNACK:
                self._greet()
            case mqtt.SUBACK:
                self._confirm(mqtt.packet_id(body), mqtt.reasons(mqtt.SUBACK, body))

    def _greet(self) -> None:
        """Subscribe first: the answer to a message may come at once."""
        self._up = True
        self._queue.extendleft(reversed(self._unacknowledged.values()))
        self._unacknowledged.clear()
        self._unacknowledged_bytes = 0
        self._unanswered.clear()
        for pattern in self._patterns:
            packet = self._next_packet()
            self._unanswered.add(packet)
            self._write(mqtt.subscribe(packet, pattern))
        if not self._patterns:
            self._announce()

    def _confirm(self, packet: int, failures: list[int]) -> None:
        if failures:
            self.refusal = f"a subscription was refused with code {failures[0]:#x}"
        if packet in self._unanswered:
            self._unanswered.remove(packet)
            if not self._unanswered:
                self._announce()

    def _announce(self) -> None:
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(None)
        self._owner.connected()
        self._pump()

    def _acknowledge(self, packet: int) -> None:
        message = self._unacknowledged.pop(packet, None)
        if message is not None:
            self._unacknowledged_bytes -= len(message[1])
            if self._queue:
                self._pump()

    def _pump(self) -> None:
        """Write queued messages while the window has room."""
        while self._queue and self._up and self._has_room(len(self._queue[0][1])):
            message = topic, payload, retain = self._queue.popleft()
            packet = self._next_packet()
            self._unacknowledged[packet] = message
            self._unacknowledged_bytes += len(payload)
            expiry_s = None if retain else MESSAGE_EXPIRY_S
            header = mqtt.publish_header(topic, packet, len(payload), retain=retain, expiry_s=expiry_s)
            self._traffic.messages_up += 1
            if len(payload) <= SMALL_BYTES:
                self._write(header + payload)
            else:
                self._write(header)
                self._write(payload)
            if not self._queue:
                self._owner.sent()

    def _has_room(self, payload_bytes: int) -> bool:
        if not self._unacknowledged:
            return True
        is_short = len(self._unacknowledged) < WINDOW_MESSAGES
        return is_short and self._unacknowledged_bytes + payload_bytes <= WINDOW_BYTES

    def _next_packet(self) -> int:
        while True:
            self._last_packet = self._last_packet % 0xFFFF + 1
            if self._last_packet not in self._unacknowledged:
                return self._last_packet

    def _write(self, content: bytes | memoryview) -> None:
        if self._transport is not None:
            self._spoke_s = time.monotonic()
            self._traffic.bytes_up += len(content)
            self._transport.write(content)


async def keep_alive(connections: Iterable[Connection]) -> None:
    """Ping for all silent connections, until cancelled."""
    while True:
        await asyncio.sleep(1.0)
        now_s = time.monotonic()
        for connection in connections:
            connection.ping_if_silent(now_s)
