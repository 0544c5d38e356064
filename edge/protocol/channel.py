"""The connection between coordinator and devices, independent of its transport.

`mqtt.py` implements it over MQTT; simulations bring their own. All other code depends on this file alone.

A channel promises little: any broker with QoS 1, retained messages and a last will can serve. It may lose a message
even after the broker took it, and it may deliver one twice, so owners repeat whatever was not answered. It reconnects
by itself after a failure and then reports `Connected`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["Channel", "Connected", "Event", "Health", "Received"]


@dataclass(frozen=True)
class Received:
    """A message on a subscribed topic. Duplicates are possible at any time."""

    topic: str
    payload: bytes
    retained: bool


@dataclass(frozen=True)
class Connected:
    """The channel is up, for the first time or again. The owner publishes its retained state and repeats requests."""


Event = Received | Connected


@dataclass(frozen=True)
class Health:
    """How a channel is doing, for people who wait for it."""

    backlog: int = 0
    """Messages that arrived and that the owner has not taken yet."""
    broker: str = ""
    """The address it is connected to, or tries to connect to."""
    down_s: float = 0.0
    """How long it has had no connection; 0 if it has one."""


class Channel(Protocol):
    """Sends and receives messages on topics, retained ones included. One thread owns it."""

    @property
    def chunk_bytes(self) -> int:
        """The best chunk size for this channel; known once it is open."""

    def open(self, timeout_s: float = 10.0) -> None:
        """Connect; raises LinkError if that fails."""

    def close(self) -> None:
        """Disconnect cleanly: the broker sends no last will."""

    def subscribe(self, pattern: str, *, as_published: bool = False, latest: bool = False) -> None:
        """Subscribe now and after every reconnect; subscribing again delivers retained messages again.

        With `as_published`, `Received.retained` says whether the sender asked the broker to keep the message. With
        `latest`, a message may replace an earlier one on its topic that the owner has not taken yet.
        """

    def unsubscribe(self, pattern: str) -> None:
        """Unsubscribe, and drop messages still on their way."""

    def publish(self, topic: str, payload: bytes, *, retain: bool = False, timeout_s: float = 30.0) -> None:
        """Send a message to every subscriber of its topic; raises LinkError if it cannot be sent."""

    def receive(self, timeout_s: float) -> Event | None:
        """The next message or event, or None after `timeout_s`; 0 does not wait."""

    def health(self) -> Health:
        """How the connection is doing right now."""
