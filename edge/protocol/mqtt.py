"""The one way to the broker, for devices and coordinator alike: bytes in, bytes out. No other file knows MQTT.

A link promises little, so that any broker with QoS 1, retained messages and a last will can serve. It never relies on a
session kept by the broker: after every connect it renews its subscriptions and, once the broker has confirmed them,
puts `Connected` into the inbox; the owner then publishes its retained state and asks again. Messages may come before
that. A published message may be lost although the broker took it (brokers drop silently when a queue is full), so
owners repeat what was not answered.

The client's network thread only fills the inbox; everything else happens in the owner's thread.
"""

from __future__ import annotations

import logging
import queue
import random
import socket
import ssl
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

from paho.mqtt.client import (
    MQTT_CLEAN_START_FIRST_ONLY,
    Client,
    ConnectFlags,
    DisconnectFlags,
    MQTTMessage,
    topic_matches_sub,
)
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from sparsyedge.edge.errors import LinkError, MessageTooLarge
from sparsyedge.edge.protocol.broker_refusal import ask_why, explain, retry_delay_s
from sparsyedge.edge.protocol.messages import CHUNK_BYTES, MIN_CHUNK_BYTES
from sparsyedge.edge.protocol.tls import Tls, client_context, reload_identity, require_tls

__all__ = ["Connected", "Link", "Received"]

log = logging.getLogger(__name__)

KEEPALIVE_S: Final = 20
"""A broker gives up a silent client after one and a half times this, and Mosquitto looks for those every 6 s: the last
will is sent after 36 s at most. No delay is asked for it: Mosquitto 2.0 holds delayed wills back for as long as other
clients keep leaving, and a device that is back in seconds loses nothing by having been called offline."""
RECONNECT_MIN_S: Final = 1
RECONNECT_MAX_S: Final = 5
"""With the jitter, nobody is later than 7 s when a broker comes back, however long it was away."""
RECONNECT_JITTER_S: Final = 2.0
SESSION_EXPIRY_S: Final = 60
"""Needs MQTT 5, as the next one does."""
MESSAGE_EXPIRY_S: Final = 600
"""Whatever is not retained is asked for again long before."""
CONNACK_TIMEOUT_S: Final = 5.0
RETRY_OPEN_S: Final = 0.5
CLOSE_TIMEOUT_S: Final = 2.0
SHORT_LIFE_S: Final = 30.0
SHORT_LIVES: Final = 3
"""A broker that takes a device in and ends the connection so soon, so often, is likely to have two of that name."""
SILENCE_S: Final = 15.0
"""A broker that leaves a SUBSCRIBE unanswered and sends nothing for so long has forgotten the connection."""

WINDOW_MESSAGES: Final = 16
WINDOW_BYTES: Final = 2 * 1024 * 1024
RECEIVE_MAXIMUM: Final = 4
"""What the broker may have under way to us: with chunks of 96 KiB a stalled device costs the broker little memory."""
MAX_PACKET_BYTES: Final = 8 * 1024 * 1024
LARGE_CHUNK_BYTES: Final = 256 * 1024
PACKET_OVERHEAD_BYTES: Final = 1024
"""Topic, properties and header of a packet take less."""
INBOX_BYTES: Final = 64 * 1024 * 1024
"""Messages beyond this are dropped: all of them are retained or repeated, and a device's memory is not ours to fill."""

_UNSUPPORTED_VERSION: Final = 0x84
_LOGIN_REFUSED: Final = (0x86, 0x87)


@dataclass(frozen=True)
class Received:
    """One message that a subscription asked for; a duplicate is possible at any time."""

    topic: str
    payload: bytes
    retained: bool


@dataclass(frozen=True)
class Connected:
    """The link is up, for the first time or again: the owner publishes its retained state and asks again."""


class Link:
    """A connection to the broker that comes back by itself. One thread owns it; it may be opened once."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        identity: str,
        will: tuple[str, bytes] | None = None,
        tls: Tls | None = None,
        login: tuple[str, str] | None = None,
    ) -> None:
        """A link that is not open yet; raises SecurityError where it would leave this machine in the clear.

        `login` is a name and a password, for a broker that asks for them.
        """
        require_tls(host, tls, what="the MQTT broker")
        self._tls_files = tls
        self._tls = client_context(tls) if tls else None
        self.host = host
        self.port = port
        self.identity = identity
        self._will = will
        self._login = login
        self._client: Client | None = None
        self._inbox: queue.SimpleQueue[Received | Connected] = queue.SimpleQueue()
        # Guards everything below. Never held while calling the client: its callbacks hold the client's own locks.
        self._changed = threading.Condition()
        self._patterns: list[str] = []
        self._as_published: set[str] = set()
        self._inbox_bytes = 0
        self._overflowed = False
        self._up = False
        self._opened = False
        self._closing = threading.Event()
        self._refusal: ReasonCode | None = None
        self._gone = False
        self._turned_away: ssl.SSLError | bool = False
        """Whether the last try to connect again reached the broker in vain, and how it failed, if that is known."""
        self._refusals = 0
        self._trouble: str | None = None
        """Why the broker refuses this link, as far as it says so."""
        self._unacknowledged: dict[int, int] = {}
        self._acknowledged_early: set[int] = set()
        self._unanswered: dict[int, float] = {}
        self._answered_early: set[int] = set()
        self._renewed: set[int] = set()
        self._last_arrival_s = 0.0
        self._connected_s = 0.0
        self._short_lives = 0
        self._protocol = MQTTProtocolVersion.MQTTv311
        self._packet_limit: int | None = None

    @property
    def _has_status(self) -> bool:
        """Whether this is a device, whose last will says something about it."""
        return self._will is not None and bool(self._will[1])

    @property
    def is_refused(self) -> bool:
        """Whether the broker is there and does not let this device in; trying again soon is of no use."""
        return self._trouble is not None

    @property
    def is_unknown(self) -> bool:
        """Whether the broker refused the name or the password the last time."""
        return self._refusal is not None and self._refusal.value in _LOGIN_REFUSED

    @property
    def chunk_bytes(self) -> int:
        """How large a blob's chunks should be on this broker: what cloud brokers take, or more where it says so."""
        if self._protocol != MQTTProtocolVersion.MQTTv5:
            return CHUNK_BYTES
        if self._packet_limit is None:
            return LARGE_CHUNK_BYTES
        largest = (self._packet_limit - PACKET_OVERHEAD_BYTES) // 1024 * 1024
        return max(MIN_CHUNK_BYTES, min(LARGE_CHUNK_BYTES, largest))

    # ---- opening and closing -----------------------------------------------------------------------------------------

    def open(self, timeout_s: float = 10.0) -> None:
        """Connect, with MQTT 5 where the broker speaks it and 3.1.1 where not; raises LinkError after `timeout_s`."""
        until_s = time.monotonic() + timeout_s
        problem, self._trouble = "no answer", None
        if self._tls is not None and self._tls_files is not None:
            reload_identity(self._tls, self._tls_files)
        while (left_s := until_s - time.monotonic()) > 0:
            try:
                protocol = _find_protocol(self._make_probe(), self.host, self.port, min(left_s / 2, CONNACK_TIMEOUT_S))
                if self._try_open(protocol, min(max(RETRY_OPEN_S, until_s - time.monotonic()), CONNACK_TIMEOUT_S)):
                    return
            except OSError as error:
                problem = str(error)
                why = self._why(error) if isinstance(error, ssl.SSLError | ConnectionResetError) else None
            else:
                if self._refusal:
                    problem = str(self._refusal)
                    break
                problem = "it closed the connection or did not answer"
                why = self._why(None)
            if why:
                # Waiting makes no other broker of it, and no other device of this one.
                self._trouble = why
                raise LinkError(f"cannot connect to the MQTT broker at {self.host}:{self.port}: {why}")
            self._closing.wait(min(RETRY_OPEN_S, max(0.0, until_s - time.monotonic())))
        raise LinkError(
            f"cannot connect to the MQTT broker at {self.host}:{self.port} as {self.identity}: {problem}; "
            f"check that the broker runs there and that host and port in the config are right"
        )

    def _why(self, error: OSError | None) -> str | None:
        """Why the broker has turned us away; None where nobody says."""
        if self._tls_files is None:
            return None
        if isinstance(error, ssl.SSLError) and (why := explain(error, self._tls_files, self.host)):
            return why
        return ask_why(self.host, self.port, self._tls_files, timeout_s=CONNACK_TIMEOUT_S)

    def _try_open(self, protocol: MQTTProtocolVersion, timeout_s: float) -> bool:
        """One attempt in one protocol; False where the broker refused or kept silent, OSError where there is none."""
        with self._changed:
            self._refusal, self._gone = None, False
            self._protocol = protocol
        client = self._make_client(protocol)
        client.connect_timeout = timeout_s
        if protocol == MQTTProtocolVersion.MQTTv5:
            client.connect(
                self.host,
                self.port,
                KEEPALIVE_S,
                clean_start=MQTT_CLEAN_START_FIRST_ONLY,
                properties=_connect_properties(keep_session=self._has_status),
            )
        else:
            client.connect(self.host, self.port, KEEPALIVE_S)
        client.on_pre_connect = self._on_pre_connect
        client.loop_start()
        with self._changed:
            self._changed.wait_for(lambda: self._up or self._gone or self._refusal is not None, timeout_s)
            up = self._up
        if up:
            self._client = client
        else:
            self._end(client)
        return up

    def _make_client(self, protocol: MQTTProtocolVersion) -> Client:
        # Clean sessions: what the broker would have kept for us is asked for again anyway. With MQTT 5 it may keep what
        # comes during a short absence, which saves the asking.
        clean = None if protocol == MQTTProtocolVersion.MQTTv5 else True
        client = Client(CallbackAPIVersion.VERSION2, client_id=self.identity, protocol=protocol, clean_session=clean)
        if self._tls:
            client.tls_set_context(self._tls)
        if self._login:
            client.username_pw_set(*self._login)
        client.max_inflight_messages_set(WINDOW_MESSAGES)
        client.reconnect_delay_set(RECONNECT_MIN_S, RECONNECT_MAX_S)
        if self._will:
            client.will_set(self._will[0], self._will[1], qos=1, retain=True)
        client.on_connect = self._on_connect
        client.on_connect_fail = self._on_connect_fail
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        client.on_publish = self._on_publish
        client.on_subscribe = self._on_subscribe
        return client

    def _make_probe(self) -> Client:
        client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
        if self._tls:
            client.tls_set_context(self._tls)
        return client

    def close(self) -> None:
        """Wait shortly for unacknowledged messages, then leave in order: the last will is not sent."""
        client, self._client = self._client, None
        if client is None:
            return
        with self._changed:
            self._changed.wait_for(lambda: not self._up or not self._unacknowledged, CLOSE_TIMEOUT_S)
        self._closing.set()
        self._end(client)

    def _end(self, client: Client) -> None:
        """Disconnect and end the network thread, also where the broker no longer reads."""
        # The network thread does not end while messages wait to be acknowledged.
        client.drop_out_messages()
        ends_session = self._protocol == MQTTProtocolVersion.MQTTv5 and self._has_status
        client.disconnect(properties=_leave_properties() if ends_session else None)
        with self._changed:
            self._changed.wait_for(lambda: not self._up, CLOSE_TIMEOUT_S)
        _cut(client)
        client.loop_stop()

    # ---- what the owner does -----------------------------------------------------------------------------------------

    def subscribe(self, pattern: str, *, as_published: bool = False) -> None:
        """Ask for the topics that match, now and after every reconnect; asking again brings retained messages again."""
        with self._changed:
            if pattern not in self._patterns:
                self._patterns.append(pattern)
            if as_published:
                self._as_published.add(pattern)
            client = self._client if self._up else None
        if client:
            self._send_subscribe(client, pattern)

    def unsubscribe(self, pattern: str) -> None:
        """Stop asking; what is still under way is dropped."""
        with self._changed:
            if pattern in self._patterns:
                self._patterns.remove(pattern)
            client = self._client if self._up else None
        if client:
            client.unsubscribe(pattern)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False, timeout_s: float = 30.0) -> None:
        """Hand a message to the broker with QoS 1.

        Blocks while the link is down or too much is unacknowledged; LinkError after `timeout_s`. The message is
        repeated over reconnects, and that the broker took it does not mean that anybody got it.
        """
        client = self._client
        if client is None:
            raise LinkError(f"the link of {self.identity} is closed; open it before publishing to {topic}")
        with self._changed:
            if not self._changed.wait_for(lambda: self._up and self._has_room(len(payload)), timeout_s):
                if self._trouble and not self._up:
                    raise LinkError(f"the MQTT broker at {self.host}:{self.port} takes no message: {self._trouble}")
                problem = f"{len(self._unacknowledged)} are unacknowledged" if self._up else "it is unreachable"
                raise LinkError(
                    f"the MQTT broker at {self.host}:{self.port} took no message for {timeout_s:g} s: {problem}; "
                    f"check the broker and the network"
                )
        if self._packet_limit is not None and len(payload) + PACKET_OVERHEAD_BYTES > self._packet_limit:
            raise MessageTooLarge(
                f"a message of {len(payload)} bytes to {topic} is too large for the MQTT broker at "
                f"{self.host}:{self.port}, which takes packets of {self._packet_limit}; raise its limit"
            )
        expires = not retain and self._protocol == MQTTProtocolVersion.MQTTv5
        properties = _publish_properties() if expires else None
        info = client.publish(topic, payload, qos=1, retain=retain, properties=properties)
        if info.rc == MQTTErrorCode.MQTT_ERR_QUEUE_SIZE:
            raise LinkError(f"the MQTT client has no room for a message to {topic}")
        with self._changed:
            # The acknowledgement may be faster than this thread.
            if info.mid in self._acknowledged_early:
                self._acknowledged_early.remove(info.mid)
            else:
                self._unacknowledged[info.mid] = len(payload)

    def receive(self, timeout_s: float) -> Received | Connected | None:
        """The next message or event, None after `timeout_s`; 0 looks without waiting."""
        self._check_silence()
        try:
            event = self._inbox.get(block=timeout_s > 0, timeout=timeout_s if timeout_s > 0 else None)
        except queue.Empty:
            return None
        if isinstance(event, Received):
            with self._changed:
                self._inbox_bytes -= len(event.payload)
        return event

    def _has_room(self, payload_bytes: int) -> bool:
        # A message larger than the window goes alone.
        under_way = sum(self._unacknowledged.values())
        return not self._unacknowledged or (
            len(self._unacknowledged) < WINDOW_MESSAGES and under_way + payload_bytes <= WINDOW_BYTES
        )

    def _send_subscribe(self, client: Client, pattern: str) -> None:
        as_published = pattern in self._as_published and self._protocol == MQTTProtocolVersion.MQTTv5
        # paho takes options with MQTT 5 only, and a QoS with either.
        options = SubscribeOptions(qos=1, retainAsPublished=True) if as_published else None
        _, mid = client.subscribe(pattern, options=options) if options else client.subscribe(pattern, qos=1)
        if mid is not None:
            with self._changed:
                # As with publish: the answer may be faster than this thread.
                if mid in self._answered_early:
                    self._answered_early.remove(mid)
                else:
                    self._unanswered[mid] = time.monotonic()

    def _check_silence(self) -> None:
        """Drop a connection that the broker has forgotten: amqtt does that when others subscribe while one connects."""
        with self._changed:
            asked_s = min(self._unanswered.values(), default=None)
            if not self._up or asked_s is None or time.monotonic() - max(asked_s, self._last_arrival_s) < SILENCE_S:
                return
            self._unanswered.clear()
        log.warning("the broker has not answered a subscription for %g s; connecting again", SILENCE_S)
        if self._client:
            _cut(self._client)

    # ---- callbacks: in the network thread, so they never block -------------------------------------------------------

    def _on_pre_connect(self, client: Client, userdata: Any) -> None:
        """Spread the reconnects of a fleet that lost its broker; the client's own backoff is the same for all.

        Where the broker refuses this link, say why, once, and ask ever more seldom.
        """
        why = self._why_refused()
        if why != self._trouble and why is not None:
            log.error("no connection to the broker at %s:%d: %s", self.host, self.port, why)
        with self._changed:
            self._trouble = why
        wait_s = random.uniform(0, RECONNECT_JITTER_S)
        if why is not None:
            wait_s += retry_delay_s(self._refusals)
            self._refusals += 1
        if self._closing.wait(wait_s):
            raise ConnectionAbortedError("the link is closing")
        if self._tls is not None and self._tls_files is not None:
            reload_identity(self._tls, self._tls_files)

    def _why_refused(self) -> str | None:
        refusal, self._refusal = self._refusal, None
        turned_away, self._turned_away = self._turned_away, False
        if refusal is not None:
            return f"{refusal}; ask the operator whether this device is still a member of the fleet"
        if isinstance(turned_away, ssl.SSLError):
            return self._why(turned_away)
        return self._why(None) if turned_away else None

    def _on_connect_fail(self, client: Client, userdata: Any) -> None:
        # The client calls this while it handles the error, and does not hand it on.
        error = sys.exc_info()[1]
        self._turned_away = error if isinstance(error, ssl.SSLError) else isinstance(error, ConnectionResetError)

    def _on_connect(
        self, client: Client, userdata: Any, flags: ConnectFlags, reason: ReasonCode, properties: Properties | None
    ) -> None:
        if reason.is_failure:
            with self._changed:
                self._refusal = reason
                self._changed.notify_all()
            self._give_up_opening(client)
            return
        with self._changed:
            back = self._opened
            self._refusals, self._trouble, self._refusal, self._turned_away = 0, None, None, False
            self._connected_s = time.monotonic()
            self._packet_limit = getattr(properties, "MaximumPacketSize", None)
            self._unanswered.clear()
            self._answered_early.clear()
            patterns = list(self._patterns)
        # Subscriptions first: whoever waits to publish may wait for an answer to it.
        for pattern in patterns:
            self._send_subscribe(client, pattern)
        with self._changed:
            self._up = self._opened = True
            late = [pattern for pattern in self._patterns if pattern not in patterns]
            self._changed.notify_all()
        for pattern in late:
            self._send_subscribe(client, pattern)
        if back:
            log.info("connected to the broker at %s:%d again", self.host, self.port)
        # amqtt may lose a message that comes before it has dealt with a subscription, so the owner is told after that.
        with self._changed:
            self._renewed = set(self._unanswered)
            if not self._renewed:
                self._inbox.put(Connected())

    def _on_disconnect(
        self, client: Client, userdata: Any, flags: DisconnectFlags, reason: ReasonCode, properties: Properties | None
    ) -> None:
        with self._changed:
            was_up, self._up, self._gone = self._up, False, True
            self._turned_away = not was_up
            self._changed.notify_all()
        self._give_up_opening(client)
        if was_up and reason.is_failure:
            hint = self._note_short_life()
            log.warning("lost the broker at %s:%d: %s; connecting again%s", self.host, self.port, reason, hint)

    def _note_short_life(self) -> str:
        """What to think of a connection that was lost, in words; Mosquitto 2.0 does not say why it ends one."""
        is_short = time.monotonic() - self._connected_s < SHORT_LIFE_S
        self._short_lives = self._short_lives + 1 if is_short else 0
        if self._short_lives < SHORT_LIVES or not (self._tls and self._has_status):
            return ""
        return (
            f". It has ended {self._short_lives} connections in a row within {SHORT_LIFE_S:g} s: unless the broker has "
            f"a fault, another device has this one's identity; revoke it and enrol one of the two again"
        )

    def _give_up_opening(self, client: Client) -> None:
        """Keep a first connection that failed from being tried again: `open` decides about that."""
        if not self._opened:
            client.disconnect()

    def _on_message(self, client: Client, userdata: Any, message: MQTTMessage) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:
            return
        with self._changed:
            self._last_arrival_s = time.monotonic()
            # Some brokers deliver what others asked for.
            if not any(topic_matches_sub(pattern, topic) for pattern in self._patterns):
                return
            fits = self._inbox_bytes + len(message.payload) <= INBOX_BYTES
            first_dropped = not fits and not self._overflowed
            self._overflowed = not fits
            if fits:
                self._inbox_bytes += len(message.payload)
                self._inbox.put(Received(topic, bytes(message.payload), message.retain))
        if first_dropped:
            log.warning("the inbox is full (%d MiB): messages are dropped and asked for again", INBOX_BYTES >> 20)

    def _on_publish(
        self, client: Client, userdata: Any, mid: int, reason: ReasonCode, properties: Properties | None
    ) -> None:
        with self._changed:
            if self._unacknowledged.pop(mid, None) is None:
                self._acknowledged_early.add(mid)
            self._changed.notify_all()
        if reason.is_failure:
            log.warning("the broker refused a message of %s: %s", self.identity, reason)

    def _on_subscribe(
        self, client: Client, userdata: Any, mid: int, reasons: list[ReasonCode], properties: Properties | None
    ) -> None:
        with self._changed:
            if self._unanswered.pop(mid, None) is None:
                self._answered_early.add(mid)
            if self._renewed and self._renewed <= {mid}:
                self._inbox.put(Connected())
            self._renewed.discard(mid)
        for reason in reasons:
            if reason.is_failure:
                log.warning("the broker refused a subscription of %s: %s", self.identity, reason)


def _find_protocol(client: Client, host: str, port: int, timeout_s: float) -> MQTTProtocolVersion:
    """MQTT 5 where the broker understands it, asked with a CONNECT that carries nothing.

    A broker without MQTT 5 should refuse it at once, but amqtt takes its properties and will for lengths and hangs.
    """
    reasons: list[ReasonCode] = []
    client.on_connect = lambda client, userdata, flags, reason, properties: reasons.append(reason)
    client.connect_timeout = timeout_s
    client.connect(host, port, KEEPALIVE_S)
    until_s = time.monotonic() + timeout_s
    while not reasons and time.monotonic() < until_s and client.loop(timeout=0.1) == MQTTErrorCode.MQTT_ERR_SUCCESS:
        pass
    client.disconnect()
    understood = bool(reasons) and reasons[0].value != _UNSUPPORTED_VERSION
    return MQTTProtocolVersion.MQTTv5 if understood else MQTTProtocolVersion.MQTTv311


def _connect_properties(*, keep_session: bool) -> Properties:
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.ReceiveMaximum = RECEIVE_MAXIMUM
    properties.MaximumPacketSize = MAX_PACKET_BYTES
    # What is queued for a coordinator that is gone would be whole updates, so it has no session.
    properties.SessionExpiryInterval = SESSION_EXPIRY_S if keep_session else 0
    return properties


def _leave_properties() -> Properties:
    properties = Properties(PacketTypes.DISCONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = 0
    return properties


def _publish_properties() -> Properties:
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.MessageExpiryInterval = MESSAGE_EXPIRY_S
    return properties


def _cut(client: Client) -> None:
    """End the TCP connection under the client, whose network thread then notices the loss."""
    connection = client.socket()
    if isinstance(connection, socket.socket):
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            log.debug("the connection was closed already")
