"""MQTT packets as bytes; test_connection.py has a real broker read and write them."""

from __future__ import annotations

import pytest

from sparsyedge.benchmarks.rounds import mqtt_packets as mqtt
from sparsyedge.edge.errors import LinkError

PAYLOAD_SIZES = (0, 1, 100, 127, 128, 16_383, 16_384, 300_000)


def _stream(sizes: tuple[int, ...]) -> bytes:
    return b"".join(
        mqtt.publish_header(b"a/b", number + 1, size, retain=number % 2 == 1, expiry_s=None if number % 2 else 600)
        + bytes([number]) * size
        for number, size in enumerate(sizes)
    )


def _read(pieces: list[bytes], *, limit: int = 1 << 20) -> list[tuple[bytes, int, int, bool]]:
    packets, found = mqtt.Packets(limit), []
    for piece in pieces:
        for first, body in packets.feed(memoryview(piece)):
            message = mqtt.read_publish(first, body)
            assert bytes(message.payload) == bytes([message.packet - 1]) * len(message.payload)
            found.append((message.topic, message.packet, len(message.payload), message.retained))
    return found


def test_messages_of_every_length_are_read_as_they_were_written() -> None:
    found = _read([_stream(PAYLOAD_SIZES)])
    assert found == [(b"a/b", number + 1, size, number % 2 == 1) for number, size in enumerate(PAYLOAD_SIZES)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 4096])
def test_it_does_not_matter_where_the_stream_is_cut(size: int) -> None:
    stream = _stream((0, 5, 127, 128, 5000))
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert _read(pieces) == _read([stream])


def test_a_packet_beyond_the_limit_is_refused_before_it_is_held() -> None:
    with pytest.raises(LinkError, match=r"packet of .* bytes; at most 1000 were asked for"):
        _read([_stream((2000,))[:10]], limit=1000)


def test_a_length_without_end_is_refused() -> None:
    with pytest.raises(LinkError, match="malformed length"):
        list(mqtt.Packets(1000).feed(memoryview(b"\x30\xff\xff\xff\xff\xff")))


def test_only_failures_count_as_reasons() -> None:
    assert mqtt.reasons(mqtt.CONNACK, memoryview(b"\x00\x00\x00")) == []
    assert mqtt.reasons(mqtt.CONNACK, memoryview(b"\x00\x87\x00")) == [0x87]
    assert mqtt.reasons(mqtt.SUBACK, memoryview(b"\x00\x01\x00\x01\x87")) == [0x87]
    assert mqtt.reasons(mqtt.PUBACK, memoryview(b"\x00\x01\x10")) == []
