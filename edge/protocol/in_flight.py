"""Packets that the broker has yet to answer. No I/O and no lock: the link has its own."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Generic, TypeVar

__all__ = ["InFlight", "Window"]

WINDOW_MESSAGES: Final = 16
WINDOW_BYTES: Final = 2 * 1024 * 1024

Fact = TypeVar("Fact")


class InFlight(Generic[Fact]):
    """One fact per unanswered packet, by packet id.

    The network thread may see an answer before the sending thread has recorded the packet. We remember such an answer
    until `sent` names its packet.
    """

    def __init__(self) -> None:
        self._facts: dict[int, Fact] = {}
        self._answered_early: set[int] = set()

    def __len__(self) -> int:
        return len(self._facts)

    @property
    def ids(self) -> set[int]:
        return set(self._facts)

    @property
    def facts(self) -> Collection[Fact]:
        return self._facts.values()

    def sent(self, packet: int, fact: Fact) -> None:
        """Note a packet that went to the client."""
        if packet in self._answered_early:
            self._answered_early.remove(packet)
        else:
            self._facts[packet] = fact

    def answered(self, packet: int) -> None:
        """Note the broker's answer."""
        if self._facts.pop(packet, None) is None:
            self._answered_early.add(packet)

    def forget_sent(self) -> None:
        """Expect no more answers to packets sent so far."""
        self._facts.clear()

    def reset(self) -> None:
        """Start over, for a new connection."""
        self._facts.clear()
        self._answered_early.clear()


class Window:
    """Unacknowledged messages, limited in number and in bytes. They survive a reconnect: the client repeats them.

    One of them may be a message with QoS 0, which is answered as soon as the client has written it. The client does not
    repeat that one.
    """

    def __init__(self) -> None:
        self._sizes: InFlight[int] = InFlight()
        self._told: int | None = None
        """The packet with QoS 0 that the client has not written yet."""

    def __len__(self) -> int:
        return len(self._sizes)

    def has_room(self, payload_bytes: int) -> bool:
        """Whether one more message fits; a message larger than the whole window goes alone."""
        if not self._sizes:
            return True
        return len(self._sizes) < WINDOW_MESSAGES and sum(self._sizes.facts) + payload_bytes <= WINDOW_BYTES

    def sent(self, packet: int, payload_bytes: int) -> None:
        """Note a message that went to the client."""
        self._sizes.sent(packet, payload_bytes)

    @property
    def may_tell(self) -> bool:
        """Whether the last message with QoS 0 is on its way, so that another one does not pile up behind it."""
        return self._told is None

    def told(self, packet: int, payload_bytes: int) -> None:
        """Note a message with QoS 0 that went to the client."""
        self._sizes.sent(packet, payload_bytes)
        if packet in self._sizes.ids:
            self._told = packet

    def forget_told(self) -> None:
        """Expect no answer to a message with QoS 0: its connection is gone, and it went with it."""
        if self._told is not None:
            self.acknowledged(self._told)

    def acknowledged(self, packet: int) -> None:
        """Note that the broker took the message, or that one with QoS 0 was written."""
        self._sizes.answered(packet)
        if packet == self._told:
            self._told = None
