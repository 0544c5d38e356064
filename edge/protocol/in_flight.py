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
    """Unacknowledged messages, limited in number and in bytes. They survive a reconnect: the client repeats them."""

    def __init__(self) -> None:
        self._sizes: InFlight[int] = InFlight()

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

    def acknowledged(self, packet: int) -> None:
        """Note that the broker took the message."""
        self._sizes.answered(packet)
