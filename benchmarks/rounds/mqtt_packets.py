"""The packets of MQTT 5 that a device sends and reads, as bytes. No I/O.

paho needs a thread and some hundred kilobytes per connection. Ten thousand devices on two cores need less: this module
and `connection.py` are a client without either. The packets are those of a real device's link (edge/protocol/mqtt.py),
with the same limits, expiry times and keep-alive.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from sparsyedge.edge.errors import LinkError

__all__ = [
    "CONNACK",
    "DISCONNECT",
    "PINGREQ",
    "PINGRESP",
    "PUBACK",
    "PUBLISH",
    "SUBACK",
    "UNSUBACK",
    "Packets",
    "Published",
    "connect",
    "packet_id",
    "puback",
    "publish_header",
    "read_publish",
    "reasons",
    "subscribe",
    "unsubscribe",
]

CONNECT, CONNACK, PUBLISH, PUBACK, SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK = 1, 2, 3, 4, 8, 9, 10, 11
PINGRESP: Final = 13
PINGREQ: Final = b"\xc0\x00"
DISCONNECT: Final = b"\xe0\x00"

SESSION_EXPIRY, RECEIVE_MAXIMUM, MESSAGE_EXPIRY, MAXIMUM_PACKET = b"\x11", b"\x21", b"\x02", b"\x27"
PROTOCOL: Final = b"\x00\x04MQTT\x05"
CLEAN_START, HAS_WILL, WILL_QOS_1, WILL_RETAIN = 0x02, 0x04, 0x08, 0x20
QOS_1, RETAIN = 0x02, 0x01
FAILED: Final = 0x80
"""Reason codes from here on are failures."""
MAX_LENGTH_BYTES: Final = 4


# ---- writing ---------------------------------------------------------------------------------------------------------


def connect(
    identity: str,
    *,
    keepalive_s: int,
    will: tuple[str, bytes] | None = None,
    receive_maximum: int,
    max_packet_bytes: int,
    session_expiry_s: int,
) -> bytes:
    """CONNECT with a clean start and, as a device has one, a retained last will."""
    flags = CLEAN_START | (HAS_WILL | WILL_QOS_1 | WILL_RETAIN if will else 0)
    properties = (
        SESSION_EXPIRY
        + struct.pack(">I", session_expiry_s)
        + RECEIVE_MAXIMUM
        + struct.pack(">H", receive_maximum)
        + MAXIMUM_PACKET
        + struct.pack(">I", max_packet_bytes)
    )
    body = PROTOCOL + struct.pack(">BH", flags, keepalive_s) + _length(len(properties)) + properties
    body += _text(identity.encode())
    if will:
        body += b"\x00" + _text(will[0].encode()) + _text(will[1])
    return _packet(CONNECT << 4, body)


def subscribe(packet: int, pattern: str) -> bytes:
    """SUBSCRIBE with QoS 1."""
    return _packet(SUBSCRIBE << 4 | 2, struct.pack(">HB", packet, 0) + _text(pattern.encode()) + b"\x01")


def unsubscribe(packet: int, pattern: str) -> bytes:
    """UNSUBSCRIBE from one pattern."""
    return _packet(UNSUBSCRIBE << 4 | 2, struct.pack(">HB", packet, 0) + _text(pattern.encode()))


def publish_header(topic: bytes, packet: int, payload_bytes: int, *, retain: bool, expiry_s: int | None) -> bytes:
    """PUBLISH with QoS 1, up to where the payload begins."""
    properties = b"" if expiry_s is None else MESSAGE_EXPIRY + struct.pack(">I", expiry_s)
    head = _text(topic) + struct.pack(">H", packet) + _length(len(properties)) + properties
    return bytes([PUBLISH << 4 | QOS_1 | (RETAIN if retain else 0)]) + _length(len(head) + payload_bytes) + head


def puback(packet: int) -> bytes:
    """PUBACK that reports success."""
    return b"\x40\x02" + packet.to_bytes(2)


def _packet(first: int, body: bytes) -> bytes:
    return bytes([first]) + _length(len(body)) + body


def _text(content: bytes) -> bytes:
    return len(content).to_bytes(2) + content


def _length(value: int) -> bytes:
    encoded = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        encoded.append(low | 0x80 if value else low)
        if not value:
            return bytes(encoded)


# ---- reading ---------------------------------------------------------------------------------------------------------


class Published(NamedTuple):
    """An incoming message; the payload is valid only until the next packets are read."""

    topic: bytes
    packet: int
    """0 if the message was sent with QoS 0, which needs no answer."""
    payload: memoryview
    retained: bool


class Packets:
    """Cuts a stream into packets."""

    def __init__(self, max_packet_bytes: int) -> None:
        self._max = max_packet_bytes
        self._held = bytearray()
        self._wanted = 0
        """How many bytes must be there before another look is worth it."""

    def feed(self, arrived: memoryview) -> Iterator[tuple[int, memoryview]]:
        """First byte and body of each packet that is now complete; raises LinkError if this is no MQTT.

        Bodies are views: use them before asking for the next packet.
        """
        if self._held:
            self._held += arrived
            if len(self._held) < self._wanted:
                return
            stream, self._held = memoryview(self._held), bytearray()
        else:
            stream = arrived
        at = 0
        while (found := self._next(stream, at)) is not None:
            start, stop = found
            yield stream[at], stream[start:stop]
            at = stop
        if at < len(stream):
            self._held = bytearray(stream[at:])

    def _next(self, stream: memoryview, at: int) -> tuple[int, int] | None:
        """Where the body of the packet at `at` starts and stops; None if it has not all arrived."""
        size, start = _read_length(stream, at + 1)
        if start == 0:
            self._wanted = 0
            return None
        if size > self._max:
            raise LinkError(f"the broker sent a packet of {size} bytes; at most {self._max} were asked for")
        self._wanted = start + size - at
        return (start, start + size) if start + size <= len(stream) else None


def read_publish(first: int, body: memoryview) -> Published:
    """Read a PUBLISH, given its first byte."""
    size = body[0] << 8 | body[1]
    topic, at, packet = bytes(body[2 : 2 + size]), 2 + size, 0
    if first & 0x06:
        packet, at = body[at] << 8 | body[at + 1], at + 2
    properties, start = _read_length(body, at)
    return Published(topic, packet, body[start + properties :], bool(first & RETAIN))


def packet_id(body: memoryview) -> int:
    """The packet that a PUBACK, SUBACK or UNSUBACK answers."""
    return body[0] << 8 | body[1]


def reasons(kind: int, body: memoryview) -> list[int]:
    """The reason codes in an answer that are failures."""
    if kind == CONNACK:
        codes = [body[1]]
    elif kind == PUBACK:
        codes = list(body[2:3])
    else:
        size, start = _read_length(body, 2)
        codes = list(body[start + size :])
    return [code for code in codes if code >= FAILED]


def _read_length(stream: memoryview, at: int) -> tuple[int, int]:
    """A variable-length integer and where it ends; the end is 0 if it has not all arrived."""
    value = 0
    for place in range(MAX_LENGTH_BYTES):
        if at + place >= len(stream):
            return 0, 0
        value |= (stream[at + place] & 0x7F) << 7 * place
        if stream[at + place] < 0x80:
            return value, at + place + 1
    raise LinkError("the broker sent a malformed length; is something else listening there?")
