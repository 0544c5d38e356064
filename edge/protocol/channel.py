"""What coordinator and devices need of a connection. mqtt.py is the one over MQTT; simulations bring their own."""

from __future__ import annotations

from typing import Protocol

from sparsyedge.edge.protocol.mqtt import Connected, Received

__all__ = ["Channel"]


class Channel(Protocol):
    """Topics in, topics out, with retained messages; `Link` says how little each call promises."""

    def open(self, timeout_s: float = 10.0) -> None:
        """Connect; raises LinkError where that fails."""

    def close(self) -> None:
        """Leave in order."""

    def subscribe(self, pattern: str, *, as_published: bool = False) -> None:
        """Ask for the topics that match; asking again brings retained messages again.

        With `as_published`, what arrives counts as retained where its sender asked the broker to keep it.
        """

    def unsubscribe(self, pattern: str) -> None:
        """Stop asking."""

    def publish(self, topic: str, payload: bytes, *, retain: bool = False, timeout_s: float = 30.0) -> None:
        """Send a message to whoever asked for its topic; raises LinkError where it cannot be sent."""

    def receive(self, timeout_s: float) -> Received | Connected | None:
        """The next message or event, None after `timeout_s`."""
