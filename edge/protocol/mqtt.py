"""The channel over MQTT, for devices and coordinator alike.

A link never relies on a session kept by the broker. After every connect it renews its subscriptions. It reports
`Connected` once the broker has confirmed them; messages may arrive earlier. It may know several brokers, the nodes of a
cluster: then it goes from one that is lost or does not answer to the next (`route.py`).

The client's network thread calls the link back to queue arrivals, to track acknowledgements, and to pause between
reconnect attempts. Everything else happens in the owner's thread.
"""

from __future__ import annotations

import logging
import math
import random
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from sparsyedge.edge.errors import LinkError, MessageTooLarge
from sparsyedge.edge.protocol import subscriptions
from sparsyedge.edge.protocol.admission import Admission, Refusal, membership_doubt
from sparsyedge.edge.protocol.arrivals import Arrivals
from sparsyedge.edge.protocol.channel import Connected, Event, Health, Received
from sparsyedge.edge.protocol.chunks import PACKET_OVERHEAD_BYTES, chunk_bytes_within
from sparsyedge.edge.protocol.in_flight import Window
from sparsyedge.edge.protocol.messages import CHUNK_BYTES
from sparsyedge.edge.protocol.mqtt_client import MqttClient, Will, speaks_mqtt_5
from sparsyedge.edge.protocol.route import Address, Route
from sparsyedge.edge.protocol.subscriptions import Subscriptions
from sparsyedge.edge.protocol.tls import Tls, require_tls, up_to_date_context

__all__ = ["Link"]

log = logging.getLogger(__name__)

CONNACK_TIMEOUT_S: Final = 5.0
RETRY_OPEN_S: Final = 0.5
CLOSE_TIMEOUT_S: Final = 2.0
RECONNECT_JITTER_S: Final = 2.0
ASK_AGAIN_S: Final = 3.0


class Link:
    """A `Channel` to a broker that reconnects by itself. One thread owns it; it opens only once."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        identity: str,
        will: Will | None = None,
        tls: Tls | None = None,
        login: tuple[str, str] | None = None,
        others: Sequence[tuple[str, int]] = (),
        find: Callable[[], Sequence[Address]] | None = None,
    ) -> None:
        """Create a closed link; raises SecurityError if it would leave this machine unencrypted.

        `login` is a name and a password, for brokers that require them; `others` are the cluster's other nodes. If none
        of them answers, `find` says where else the broker may be; then its certificate may have any name.
        """
        if find is not None:
            require_tls("wherever it is found", tls, what="the MQTT broker")
            tls = replace(tls, any_name=True) if tls else None
        addresses = [Address(host, port), *(Address(*other) for other in others)]
        for address in addresses:
            require_tls(address.host, tls, what="the MQTT broker")
        self._tls_files = tls
        self._tls = up_to_date_context(tls) if tls else None
        self.identity = identity
        self._will = will
        self._login = login
        self._client: MqttClient | None = None
        self._arrivals = Arrivals()
        self._route = Route(addresses, tls, find=find)
        self._closing = threading.Event()
        # Guards everything below. Never held while calling the client: its callbacks hold the client's own locks.
        self._changed = threading.Condition()
        self._subscriptions = Subscriptions()
        self._window = Window()
        self._ask_again_s = math.inf
        """When to renew subscriptions of which one was refused."""
        self._up = False
        self._opened = False
        self._gone = False
        """Whether the first connection, the one `open` waits for, has ended."""
        self._is_mqtt_5 = False
        self._packet_limit: int | None = None
        self._lost_s = time.monotonic()
        """When the connection was lost; the link's beginning before the first one."""

    @property
    def host(self) -> str:
        """The host of the broker that the link tries or uses."""
        return self._route.address.host

    @property
    def port(self) -> int:
        return self._route.address.port

    @property
    def _admission(self) -> Admission:
        return self._route.here

    @property
    def _is_device(self) -> bool:
        """Whether the last will has content. Only a device's has: it says that the device is offline."""
        return self._will is not None and bool(self._will[1])

    @property
    def is_refused(self) -> bool:
        """Whether a broker is up but refuses this device, and none admits it; retrying soon is pointless."""
        return not self._up and any(stop.trouble is not None for stop in self._route.stops)

    @property
    def is_unknown(self) -> bool:
        """Whether a broker's last refusal was about the name or the password."""
        return any(stop.is_unknown for stop in self._route.stops)

    @property
    def chunk_bytes(self) -> int:
        """A size that every cloud broker accepts, or more if this broker allows it."""
        return chunk_bytes_within(self._packet_limit) if self._is_mqtt_5 else CHUNK_BYTES

    # ---- opening and closing -----------------------------------------------------------------------------------------

    def open(self, timeout_s: float = 10.0) -> None:
        """Connect, with MQTT 5 if the broker speaks it, else 3.1.1; raises LinkError after `timeout_s`."""
        until_s = time.monotonic() + timeout_s
        self._route.begin()
        while (left_s := until_s - time.monotonic()) > 0:
            # A broker that keeps silent must leave time for those after it.
            if self._enter(time.monotonic() + left_s / self._route.left_of_lap):
                return
            if self._route.is_hopeless:
                if self._route.look_again():
                    continue
                # Waiting will change neither the brokers nor this device.
                break
            if self._route.try_next():
                self._closing.wait(min(RETRY_OPEN_S, max(0.0, until_s - time.monotonic())))
        raise LinkError(self._route.failure(self.identity))

    def _enter(self, until_s: float) -> bool:
        """Try this broker once; if it does not let us in, note why."""
        admission, error = self._admission, None
        try:
            left_s = until_s - time.monotonic()
            is_mqtt_5 = speaks_mqtt_5(self.host, self.port, self._tls, min(left_s / 2, CONNACK_TIMEOUT_S))
            left_s = max(RETRY_OPEN_S, until_s - time.monotonic())
            if self._try_open(min(left_s, CONNACK_TIMEOUT_S), is_mqtt_5=is_mqtt_5):
                return True
        except OSError as failure:
            error = failure
        if error is None and admission.refusal:
            if self._tls_files is not None and self._tls_files.certificate is not None:
                admission.trouble = membership_doubt(admission.refusal)
            self._route.note_problem(admission.trouble or admission.refusal.text, is_final=True)
            return False
        may_be_refusal = error is None or isinstance(error, ssl.SSLError | ConnectionResetError)
        admission.trouble = admission.why(error) if may_be_refusal else None
        problem = "it closed the connection or did not answer" if error is None else str(error)
        self._route.note_problem(admission.trouble or problem, is_final=admission.trouble is not None)
        return False

    def _try_open(self, timeout_s: float, *, is_mqtt_5: bool) -> bool:
        """Try once; False if the broker refused or kept silent. Raises OSError if there is none."""
        with self._changed:
            self._admission.refusal, self._gone = None, False
            self._is_mqtt_5 = is_mqtt_5
        client = MqttClient(
            self,
            identity=self.identity,
            is_mqtt_5=is_mqtt_5,
            # Coordinators keep no session: the broker would queue whole updates while they are away.
            keeps_session=self._is_device,
            will=self._will,
            tls=self._tls,
            login=self._login,
            is_alone=self._route.is_single,
        )
        client.start(self.host, self.port, timeout_s)
        with self._changed:
            self._changed.wait_for(lambda: self._up or self._gone or self._admission.refusal is not None, timeout_s)
            up = self._up
        if up:
            self._client = client
        else:
            self._end(client)
        return up

    def close(self) -> None:
        """Wait briefly for unacknowledged messages, then disconnect cleanly: the broker sends no last will."""
        client, self._client = self._client, None
        if client is None:
            return
        with self._changed:
            self._changed.wait_for(lambda: not self._up or not self._window, CLOSE_TIMEOUT_S)
        self._closing.set()
        self._end(client)

    def _end(self, client: MqttClient) -> None:
        client.leave()
        with self._changed:
            self._changed.wait_for(lambda: not self._up, CLOSE_TIMEOUT_S)
        client.stop()

    # ---- what the owner does -----------------------------------------------------------------------------------------

    def subscribe(self, pattern: str, *, as_published: bool = False, latest: bool = False) -> None:
        """Subscribe now and after every reconnect; subscribing again delivers retained messages again."""
        with self._changed:
            self._subscriptions.add(pattern, as_published=as_published, latest=latest)
            client = self._client if self._up else None
        if client:
            self._send_subscribe(client, pattern)

    def unsubscribe(self, pattern: str) -> None:
        """Unsubscribe, and drop messages still on their way."""
        with self._changed:
            self._subscriptions.remove(pattern)
            client = self._client if self._up else None
        if client:
            client.unsubscribe(pattern)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False, timeout_s: float = 30.0) -> None:
        """Hand a message to the broker with QoS 1.

        Blocks while the link is down or too much is unacknowledged; raises LinkError after `timeout_s`. The client
        repeats the message after a reconnect. Even if the broker accepts it, it may reach nobody.
        """
        client = self._client
        if client is None:
            raise LinkError(f"the link of {self.identity} is closed; open it before publishing to {topic}")
        with self._changed:
            if not self._changed.wait_for(lambda: self._up and self._window.has_room(len(payload)), timeout_s):
                raise self._stuck(timeout_s)
        if self._packet_limit is not None and len(payload) + PACKET_OVERHEAD_BYTES > self._packet_limit:
            raise MessageTooLarge(
                f"a message of {len(payload)} bytes to {topic} is too large for the MQTT broker at "
                f"{self._route.address}, which takes packets of {self._packet_limit}; raise its limit"
            )
        packet = client.publish(topic, payload, retain=retain)
        with self._changed:
            self._window.sent(packet, len(payload))

    def tell(self, topic: str, payload: bytes) -> bool:
        """Send a small retained message with QoS 0, if that needs no waiting; returns whether it is on its way.

        It may be lost. Neither a broker that is gone nor one that does not read makes the caller wait.
        """
        client = self._client
        with self._changed:
            if client is None or not self._up or not self._window.may_tell:
                return False
        packet = client.tell(topic, payload)
        if packet is None:
            return False
        with self._changed:
            self._window.told(packet, len(payload))
        return True

    def health(self) -> Health:
        """How the connection is doing right now."""
        with self._changed:
            down_s = 0.0 if self._up else max(0.0, time.monotonic() - self._lost_s)
            return Health(len(self._arrivals), str(self._route.address), down_s)

    def _stuck(self, timeout_s: float) -> LinkError:
        """Why no message could go out."""
        if self._admission.trouble and not self._up:
            return LinkError(f"the MQTT broker at {self._route.address} takes no message: {self._admission.trouble}")
        if self._up:
            what = f"the MQTT broker at {self._route.address} took no message for {timeout_s:g} s: "
            return LinkError(f"{what}{len(self._window)} are unacknowledged; check the broker and the network")
        return LinkError(f"{self._route.silence(timeout_s)}; check the broker and the network")

    def receive(self, timeout_s: float) -> Event | None:
        """The next message or event, or None after `timeout_s`; 0 does not wait."""
        self._check_silence()
        self._ask_again()
        return self._arrivals.take(timeout_s)

    def _send_subscribe(self, client: MqttClient, pattern: str) -> None:
        packet = client.subscribe(pattern, as_published=self._subscriptions.is_as_published(pattern))
        if packet is not None:
            with self._changed:
                self._subscriptions.sent(packet, time.monotonic())

    def _check_silence(self) -> None:
        """Drop a connection that the broker has forgotten; amqtt forgets one if others subscribe while it connects."""
        with self._changed:
            if not self._up or not self._subscriptions.take_silence(time.monotonic()):
                return
        log.warning("the broker has not answered a subscription for %g s; connecting again", subscriptions.SILENCE_S)
        if self._client:
            self._client.cut()

    def _ask_again(self) -> None:
        """Renew all subscriptions a while after one was refused: a node that has lost its cluster's leader refuses."""
        with self._changed:
            if not self._up or time.monotonic() < self._ask_again_s:
                return
            self._ask_again_s = math.inf
            client, patterns = self._client, list(self._subscriptions.patterns)
        if client is None:
            return
        for pattern in patterns:
            self._send_subscribe(client, pattern)
        with self._changed:
            if self._subscriptions.begin_renewal():
                self._arrivals.put(Connected())

    # ---- what the client reports, in the network thread --------------------------------------------------------------

    def before_reconnect(self) -> tuple[str, int]:
        """Spread out a fleet's reconnects after a broker failure, and back off if the broker refuses this link."""
        wait_s = self._route.leave()
        if self._closing.wait(wait_s + random.uniform(0, RECONNECT_JITTER_S)):
            raise ConnectionAbortedError("the link is closing")
        return self._route.address

    def connect_failed(self, error: BaseException | None) -> None:
        self._admission.note_failure(error)

    def refused(self, client: MqttClient, refusal: Refusal) -> None:
        with self._changed:
            self._admission.refusal = refusal
            self._changed.notify_all()
        self._give_up_opening(client)

    def connected(self, client: MqttClient, packet_limit: int | None) -> None:
        with self._changed:
            back, before = self._opened, self._route.note_up()
            self._packet_limit = packet_limit
            self._subscriptions.reset()
            self._window.forget_told()
            self._ask_again_s = math.inf
            patterns = list(self._subscriptions.patterns)
        # Subscribe first: a publisher may be waiting for the answer to its message.
        for pattern in patterns:
            self._send_subscribe(client, pattern)
        with self._changed:
            self._up = self._opened = True
            late = [pattern for pattern in self._subscriptions.patterns if pattern not in patterns]
            self._changed.notify_all()
        for pattern in late:
            self._send_subscribe(client, pattern)
        if back and before:
            log.info("connected to the broker at %s, after the one at %s", self._route.address, before)
        elif back:
            log.info("connected to the broker at %s again", self._route.address)
        # amqtt may lose a message that arrives before it has handled a subscription, so tell the owner only afterwards.
        with self._changed:
            if self._subscriptions.begin_renewal():
                self._arrivals.put(Connected())

    def disconnected(self, client: MqttClient, problem: str | None) -> None:
        with self._changed:
            was_up, self._up, self._gone = self._up, False, True
            if was_up:
                self._lost_s = time.monotonic()
            self._admission.note_disconnect(was_up=was_up)
            self._changed.notify_all()
        self._give_up_opening(client)
        if was_up and problem is not None:
            hint = self._admission.note_loss(is_device=self._is_device)
            log.warning("lost the broker at %s: %s; connecting again%s", self._route.address, problem, hint)

    def _give_up_opening(self, client: MqttClient) -> None:
        """Stop the client from retrying a failed first connection: `open` decides what to do."""
        if not self._opened:
            client.give_up()

    def received(self, topic: str, payload: bytes, retained: bool) -> None:
        with self._changed:
            self._subscriptions.heard(time.monotonic())
            # Some brokers deliver messages that only others subscribed to.
            wanted = self._subscriptions.cover(topic)
            latest = self._subscriptions.wants_latest_only(topic)
        if wanted:
            self._arrivals.put(Received(topic, payload, retained), latest=latest)

    def acknowledged(self, packet: int, problem: str | None) -> None:
        with self._changed:
            self._window.acknowledged(packet)
            self._changed.notify_all()
        if problem is not None:
            log.warning("the broker refused a message of %s: %s", self.identity, problem)

    def subscribed(self, packet: int, problems: list[str]) -> None:
        with self._changed:
            if self._subscriptions.answered(packet):
                self._arrivals.put(Connected())
            if problems and not self._route.is_single:
                self._ask_again_s = time.monotonic() + ASK_AGAIN_S
        for problem in problems:
            log.warning("the broker refused a subscription of %s: %s", self.identity, problem)
