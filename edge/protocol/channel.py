"""The connection that coordinator and devices talk over, whatever carries it.

`mqtt.py` implements it over MQTT; simulations bring their own. Everybody else depends on this file alone.

A channel promises little, so that any broker with QoS 1, retained messages and a last will can serve. It may lose a
message even after the broker took it, and it may deliver one twice: owners repeat whatever was not answered. It comes
back by itself after a failure and then reports `Connected`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["Channel", "Connected", "Event", "Received"]


@dataclass(frozen=True)
class Received:
    """A message on a topic that the owner subscribed to. Duplicates are possible at any time."""

    topic: str
    payload: bytes
    retained: bool


@dataclass(frozen=True)
class Connected:
    """The channel is up, for the first time or again: the owner publishes its retained state and asks again."""


Event = Received | Connected


class Channel(Protocol):
    """Topics in, topics out, with retained messages. One thread owns it."""

    @property
    def chunk_bytes(self) -> int:
        """The chunk size that suits this channel best; known once it is open."""

    def open(self, timeout_s: float = 10.0) -> None:
        """Connect; raises LinkError if that fails."""

    def close(self) -> None:
        """Disconnect properly, so that no last will is sent."""

    def subscribe(self, pattern: str, *, as_published: bool = False) -> None:
        """Ask for matching topics, now and after every reconnect; asking again brings retained messages again.

        With `as_published`, `Received.retained` says whether the sender asked the broker to keep the message.
        """

    def unsubscribe(self, pattern: str) -> None:
        """Stop asking, and drop what is still on its way."""

    def publish(self, topic: str, payload: bytes, *, retain: bool = False, timeout_s: float = 30.0) -> None:
        """Send a message to everybody who subscribed to its topic; raises LinkError if it cannot be sent."""

    def receive(self, timeout_s: float) -> Event | None:
        """The next message or event, or None after `timeout_s`; 0 looks without waiting."""
