"""PUBLISH packets as the coordinator reads them; paho is the judge of what they say."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion

from sparsyedge.edge.protocol.mqtt_client import MqttClient
from sparsyedge.edge.protocol.publish_packet import read_publish

EXPIRES = bytes([5, 2, 0, 0, 2, 88])


def body_of(topic: bytes, packet: int | None, properties: bytes, payload: bytes) -> bytes:
    number = b"" if packet is None else packet.to_bytes(2, "big")
    return len(topic).to_bytes(2, "big") + topic + number + properties + payload


@settings(deadline=None)
@given(
    topic=st.text(min_size=1, max_size=30).map(str.encode),
    packet=st.one_of(st.none(), st.integers(1, 0xFFFF)),
    payload=st.binary(max_size=300),
    is_mqtt_5=st.booleans(),
    has_properties=st.booleans(),
    retained=st.booleans(),
)
def test_a_packet_is_read_where_its_parts_are(
    topic: bytes, packet: int | None, payload: bytes, is_mqtt_5: bool, has_properties: bool, retained: bool
) -> None:
    properties = (EXPIRES if has_properties else b"\0") if is_mqtt_5 else b""
    body = body_of(topic, packet, properties, payload)
    found = read_publish(0x30 | (packet is not None) << 1 | retained, bytearray(body), is_mqtt_5=is_mqtt_5)
    assert found is not None
    assert (found.topic, found.packet, found.retained) == (topic, packet or 0, retained)
    assert body[found.payload_at :] == payload


@pytest.mark.parametrize(
    ("first", "body"),
    [
        pytest.param(0x34, body_of(b"t", 1, b"\0", b"x"), id="QoS 2"),
        pytest.param(0x36, body_of(b"t", 1, b"\0", b"x"), id="QoS 3"),
        pytest.param(0x32, body_of(b"t", 0, b"\0", b"x"), id="id 0"),
        pytest.param(0x32, body_of(b"", 1, b"\0", b"x"), id="no topic"),
        pytest.param(0x32, b"", id="empty"),
        pytest.param(0x32, b"\0", id="half a length"),
        pytest.param(0x32, b"\0\x05top", id="cut in the topic"),
        pytest.param(0x32, b"\0\x01t\0", id="cut in the id"),
        pytest.param(0x32, b"\0\x01t\0\x01", id="no properties"),
        pytest.param(0x32, b"\0\x01t\0\x01\x05ab", id="properties beyond the end"),
        pytest.param(0x32, b"\0\x01t\0\x01\xff\xff\xff\xff\xff\x01ab", id="an endless number"),
    ],
)
def test_what_is_not_plain_is_left_to_paho(first: int, body: bytes) -> None:
    assert read_publish(first, body, is_mqtt_5=True) is None


class Heard:
    """An owner that only listens."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, bytes, bool]] = []

    def received(self, topic: str, payload: bytes, retained: bool) -> None:
        self.messages.append((topic, payload, retained))


@pytest.mark.parametrize("is_mqtt_5", [False, True])
def test_paho_hands_its_packets_to_the_short_way(is_mqtt_5: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails after an upgrade of paho, everything still works, and every message costs twice as much."""
    owner, sent = Heard(), list[int]()
    client = MqttClient(
        owner,  # type: ignore[arg-type]
        identity="i",
        is_mqtt_5=is_mqtt_5,
        keeps_session=False,
        will=None,
        tls=None,
        login=None,
    )._client

    def note(client: Client, packet: int) -> MQTTErrorCode:
        sent.append(packet)
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    monkeypatch.setattr(Client, "_send_puback", note)
    monkeypatch.setattr(Client, "_handle_publish", lambda self: pytest.fail("paho went its own way"))
    body = body_of(b"a/b", 7, EXPIRES if is_mqtt_5 else b"", b"content")
    for first, content in ((0x33, body), (0x32, body_of(b"\xff", 8, b"\0" if is_mqtt_5 else b"", b"x"))):
        client._in_packet = {**client._in_packet, "command": first, "packet": bytearray(content)}
        assert client._packet_handle() == MQTTErrorCode.MQTT_ERR_SUCCESS
    assert owner.messages == [("a/b", b"content", True)]
    assert sent == [7, 8]


def test_paho_reads_the_packets_of_these_tests_alike() -> None:
    client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
    heard = []
    client.on_message = lambda client, userdata, message: heard.append((message.topic, message.payload, message.retain))
    client._in_packet = {**client._in_packet, "command": 0x31, "packet": bytearray(body_of(b"t", None, EXPIRES, b"x"))}
    client._packet_handle()
    assert heard == [("t", b"x", True)]
