"""Reads the PUBLISH packets of MQTT: where things are in them, without a copy. No I/O."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["Publish", "read_publish"]

MAX_VARINT_BYTES: Final = 4


class Publish(NamedTuple):
    """What a packet with QoS 0 or 1 says."""

    topic: bytes
    packet: int
    """Its id, to be acknowledged; 0 with QoS 0."""
    payload_at: int
    """Where the payload begins; it reaches to the packet's end."""
    retained: bool


def read_publish(first: int, body: bytes | bytearray, *, is_mqtt_5: bool) -> Publish | None:
    """Read a packet by its first byte and all that follows its length; None if it is malformed or has QoS 2."""
    qos, topic_end = first >> 1 & 3, 2 + int.from_bytes(body[:2], "big")
    at = topic_end + (2 if qos else 0)
    if qos > 1 or len(body) < at or topic_end == 2:
        # Without a topic it has an alias. We ask for none.
        return None
    packet = int.from_bytes(body[topic_end:at], "big")
    if qos and not packet:
        return None
    if is_mqtt_5:
        after = _after_properties(body, at)
        if after is None:
            return None
        at = after
    return Publish(bytes(body[2:topic_end]), packet, at, bool(first & 1))


def _after_properties(body: bytes | bytearray, at: int) -> int | None:
    """Where the properties that begin here end. None of them concerns us."""
    size = 0
    for place, byte in enumerate(body[at : at + MAX_VARINT_BYTES]):
        size |= (byte & 0x7F) << 7 * place
        if not byte & 0x80:
            end = at + place + 1 + size
            return end if end <= len(body) else None
    return None
