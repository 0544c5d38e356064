"""One MQTT client with our settings, in plain Python values. The only file that imports paho.

MQTT 5 makes a fleet cheaper for its broker: packet limits, expiry of messages and sessions, and the sender's retain
flag. Everything also works with 3.1.1, without these.
"""

from __future__ import annotations

import logging
import socket
import ssl
import sys
import time
from typing import Any, Final, Protocol

from paho.mqtt.client import (
    MQTT_CLEAN_START_FIRST_ONLY,
    Client,
    ConnectFlags,
    DisconnectFlags,
    MQTTMessage,
)
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from sparsyedge.edge.errors import LinkError
from sparsyedge.edge.protocol.admission import Refusal
from sparsyedge.edge.protocol.in_flight import WINDOW_MESSAGES
from sparsyedge.edge.protocol.publish_packet import read_publish

__all__ = ["ClientOwner", "MqttClient", "Will", "speaks_mqtt_5"]

log = logging.getLogger(__name__)

KEEPALIVE_S: Final = 20
"""A broker drops a silent client after 1.5 times this, and Mosquitto checks every 6 s: the last will goes out after at
most 36 s. We ask for no will delay. Mosquitto 2.0 holds delayed wills back as long as other clients keep leaving, and
a device that returns within seconds loses nothing by being called offline for a moment.
"""
RECONNECT_MIN_S: Final = 1
RECONNECT_MAX_S: Final = 5
"""With the link's jitter, every client is back within 7 s of the broker's return, however long the outage."""
SESSION_EXPIRY_S: Final = 60
MESSAGE_EXPIRY_S: Final = 600
"""Messages that are not retained are requested again long before this."""
RECEIVE_MAXIMUM: Final = 4
"""How many unacknowledged messages the broker may send us. A stalled device costs it four chunks of memory."""
MAX_PACKET_BYTES: Final = 8 * 1024 * 1024

_UNSUPPORTED_VERSION: Final = 0x84

Will = tuple[str, bytes]
"""Topic and payload of a last will."""


class ClientOwner(Protocol):
    """The callbacks of a client, always in its network thread. Only `before_reconnect` may block."""

    def before_reconnect(self) -> tuple[str, int]:
        """Another attempt is about to begin; returns host and port to try, raises OSError to cancel it."""

    def connect_failed(self, error: BaseException | None) -> None:
        """An attempt failed before the broker could answer."""

    def connected(self, client: MqttClient, packet_limit: int | None) -> None:
        """The broker admitted us; it takes packets up to `packet_limit` bytes, if it states a limit."""

    def refused(self, client: MqttClient, refusal: Refusal) -> None:
        """The broker answered, and refused us."""

    def disconnected(self, client: MqttClient, problem: str | None) -> None:
        """The connection has ended; `problem` is None if that was intended."""

    def received(self, topic: str, payload: bytes, retained: bool) -> None:
        """A message arrived, perhaps one that we did not subscribe to."""

    def acknowledged(self, packet: int, problem: str | None) -> None:
        """The broker answered a PUBLISH; `problem` says why it refused."""

    def subscribed(self, packet: int, problems: list[str]) -> None:
        """The broker answered a SUBSCRIBE; `problems` lists its refusals."""


def speaks_mqtt_5(host: str, port: int, tls: ssl.SSLContext | None, timeout_s: float) -> bool:
    """Whether the broker speaks MQTT 5, tested with a bare CONNECT; raises OSError if there is no broker.

    A broker without MQTT 5 should refuse a full CONNECT at once, but amqtt misreads its properties and will as lengths
    and hangs.
    """
    reasons: list[ReasonCode] = []
    client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
    if tls:
        client.tls_set_context(tls)
    client.on_connect = lambda client, userdata, flags, reason, properties: reasons.append(reason)
    client.connect_timeout = timeout_s
    client.connect(host, port, KEEPALIVE_S)
    until_s = time.monotonic() + timeout_s
    while not reasons and time.monotonic() < until_s and client.loop(timeout=0.1) == MQTTErrorCode.MQTT_ERR_SUCCESS:
        pass
    client.disconnect()
    return bool(reasons) and reasons[0].value != _UNSUPPORTED_VERSION


class _Client(Client):
    """paho's client with a short way for messages that arrive.

    paho copies a payload eight times and makes an object of every property. A coordinator receives thousands of chunks,
    and this takes half as long. Should paho call it otherwise one day, its own way is taken.
    """

    def __init__(self, owner: ClientOwner, *, identity: str, is_mqtt_5: bool) -> None:
        # Clean sessions: we request again whatever the broker would have kept. MQTT 5 only saves some requests.
        super().__init__(
            CallbackAPIVersion.VERSION2,
            client_id=identity,
            protocol=MQTTProtocolVersion.MQTTv5 if is_mqtt_5 else MQTTProtocolVersion.MQTTv311,
            clean_session=None if is_mqtt_5 else True,
        )
        self._owner = owner
        self._is_mqtt_5 = is_mqtt_5

    def _handle_publish(self) -> MQTTErrorCode:
        packet = self._in_packet["packet"]
        found = read_publish(self._in_packet["command"], packet, is_mqtt_5=self._is_mqtt_5)
        if found is None:
            return super()._handle_publish()
        try:
            topic = found.topic.decode()
        except UnicodeDecodeError:
            # Nobody we know sends it. Unacknowledged, it would come again.
            log.debug("dropped a message whose topic is not UTF-8")
        else:
            self._owner.received(topic, bytes(memoryview(packet)[found.payload_at :]), found.retained)
        return self._send_puback(found.packet) if found.packet else MQTTErrorCode.MQTT_ERR_SUCCESS


class MqttClient:
    """A client for one version of MQTT. It reconnects by itself once it has been connected."""

    def __init__(
        self,
        owner: ClientOwner,
        *,
        identity: str,
        is_mqtt_5: bool,
        keeps_session: bool,
        will: Will | None,
        tls: ssl.SSLContext | None,
        login: tuple[str, str] | None,
        is_alone: bool = True,
    ) -> None:
        """With `keeps_session`, an MQTT 5 broker keeps messages for us during a short absence.

        `is_alone` says that there is one broker; among several, the owner knows when to slow down.
        """
        self.is_mqtt_5 = is_mqtt_5
        self._owner = owner
        self._keeps_session = keeps_session
        self._client = _Client(owner, identity=identity, is_mqtt_5=is_mqtt_5)
        if tls:
            self._client.tls_set_context(tls)
        if login:
            self._client.username_pw_set(*login)
        if will:
            self._client.will_set(will[0], will[1], qos=1, retain=True)
        self._client.max_inflight_messages_set(WINDOW_MESSAGES)
        self._client.reconnect_delay_set(RECONNECT_MIN_S, RECONNECT_MAX_S if is_alone else RECONNECT_MIN_S)
        self._client.on_connect = self._on_connect
        self._client.on_connect_fail = self._on_connect_fail
        self._client.on_disconnect = self._on_disconnect
        self._client.on_message = self._on_message
        self._client.on_publish = self._on_publish
        self._client.on_subscribe = self._on_subscribe

    # ---- what the owner calls ----------------------------------------------------------------------------------------

    def start(self, host: str, port: int, timeout_s: float) -> None:
        """Send the CONNECT and start the network thread, which reports the answer; raises OSError without a broker."""
        self._client.connect_timeout = timeout_s
        self._client.connect(host, port, KEEPALIVE_S, **self._connect_options())
        self._client.on_pre_connect = self._on_pre_connect
        self._client.loop_start()

    def _connect_options(self) -> dict[str, Any]:
        if not self.is_mqtt_5:
            return {}
        properties = _connect_properties(keeps_session=self._keeps_session)
        return {"clean_start": MQTT_CLEAN_START_FIRST_ONLY, "properties": properties}

    def give_up(self) -> None:
        """Stop reconnecting."""
        self._client.disconnect()

    def leave(self) -> None:
        """Disconnect cleanly, and drop unacknowledged messages."""
        # The network thread does not end while messages wait to be acknowledged.
        self._client.drop_out_messages()
        ends_session = self.is_mqtt_5 and self._keeps_session
        self._client.disconnect(properties=_leave_properties() if ends_session else None)

    def stop(self) -> None:
        """End the network thread, even if the broker no longer reads."""
        self.cut()
        client = self._client
        client.loop_stop()
        # paho closes its last sockets when it is freed. A circle of references would leave that to chance.
        client.on_connect = client.on_connect_fail = client.on_pre_connect = client.on_disconnect = None
        client.on_message = client.on_publish = client.on_subscribe = None

    def cut(self) -> None:
        """Cut the TCP connection under the client; its network thread then notices the loss."""
        connection = self._client.socket()
        if isinstance(connection, socket.socket):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                log.debug("the connection was closed already")

    def subscribe(self, pattern: str, *, as_published: bool) -> int | None:
        """Send a SUBSCRIBE with QoS 1; returns its packet id, or None if it could not be sent."""
        # paho accepts options only with MQTT 5, a QoS with either version.
        if as_published and self.is_mqtt_5:
            options = SubscribeOptions(qos=1, retainAsPublished=True)
            return self._client.subscribe(pattern, options=options)[1]
        return self._client.subscribe(pattern, qos=1)[1]

    def unsubscribe(self, pattern: str) -> None:
        self._client.unsubscribe(pattern)

    def publish(self, topic: str, payload: bytes, *, retain: bool) -> int:
        """Send a PUBLISH with QoS 1, repeated over reconnects; returns its packet id."""
        properties = None if retain or not self.is_mqtt_5 else _PASSING
        info = self._client.publish(topic, payload, qos=1, retain=retain, properties=properties)
        if info.rc == MQTTErrorCode.MQTT_ERR_QUEUE_SIZE:
            raise LinkError(f"the MQTT client has no room for a message to {topic}")
        return info.mid

    def tell(self, topic: str, payload: bytes) -> int | None:
        """Send a retained PUBLISH with QoS 0 without waiting; returns its packet id, None without a connection."""
        info = self._client.publish(topic, payload, qos=0, retain=True)
        return info.mid if info.rc == MQTTErrorCode.MQTT_ERR_SUCCESS else None

    # ---- what paho calls, in the network thread ----------------------------------------------------------------------

    def _on_pre_connect(self, client: Client, userdata: Any) -> None:
        host, port = self._owner.before_reconnect()
        if (host, port) != (client.host, client.port):
            # paho is between two connections here: this only sets where its next socket goes.
            client.connect_async(host, port, KEEPALIVE_S, **self._connect_options())

    def _on_connect_fail(self, client: Client, userdata: Any) -> None:
        # paho calls this inside its exception handler and does not pass the error.
        self._owner.connect_failed(sys.exc_info()[1])

    def _on_connect(
        self, client: Client, userdata: Any, flags: ConnectFlags, reason: ReasonCode, properties: Properties | None
    ) -> None:
        if reason.is_failure:
            self._owner.refused(self, Refusal(reason.value, str(reason)))
        else:
            self._owner.connected(self, getattr(properties, "MaximumPacketSize", None))

    def _on_disconnect(
        self, client: Client, userdata: Any, flags: DisconnectFlags, reason: ReasonCode, properties: Properties | None
    ) -> None:
        self._owner.disconnected(self, str(reason) if reason.is_failure else None)

    def _on_message(self, client: Client, userdata: Any, message: MQTTMessage) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:
            return
        self._owner.received(topic, bytes(message.payload), message.retain)

    def _on_publish(
        self, client: Client, userdata: Any, mid: int, reason: ReasonCode, properties: Properties | None
    ) -> None:
        self._owner.acknowledged(mid, str(reason) if reason.is_failure else None)

    def _on_subscribe(
        self, client: Client, userdata: Any, mid: int, reasons: list[ReasonCode], properties: Properties | None
    ) -> None:
        self._owner.subscribed(mid, [str(reason) for reason in reasons if reason.is_failure])


def _connect_properties(*, keeps_session: bool) -> Properties:
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.ReceiveMaximum = RECEIVE_MAXIMUM
    properties.MaximumPacketSize = MAX_PACKET_BYTES
    properties.SessionExpiryInterval = SESSION_EXPIRY_S if keeps_session else 0
    return properties


def _leave_properties() -> Properties:
    properties = Properties(PacketTypes.DISCONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = 0
    return properties


def _publish_properties() -> Properties:
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.MessageExpiryInterval = MESSAGE_EXPIRY_S
    return properties


_PASSING: Final = _publish_properties()
"""Of messages that are not retained. paho only reads them, and takes as long to make them as for all the rest."""
