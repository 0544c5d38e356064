"""The inbox of a link: bounded, whatever peers send."""

from __future__ import annotations

import pytest

from sparsyedge.edge.protocol import arrivals
from sparsyedge.edge.protocol.arrivals import OVERHEAD_BYTES, Arrivals
from sparsyedge.edge.protocol.channel import Connected, Received


def said(topic: str, payload: bytes = b"x") -> Received:
    return Received(topic, payload, retained=False)


def test_any_number_of_messages_of_which_the_last_counts_takes_the_room_of_one() -> None:
    inbox = Arrivals()
    inbox.put(said("offer"))
    for number in range(10_000):
        inbox.put(said("progress", b"%d" % number), latest=True)
    inbox.put(Connected())
    assert len(inbox) == 3
    assert [inbox.take(0) for _ in range(4)] == [said("offer"), said("progress", b"9999"), Connected(), None]


def test_a_message_after_the_last_one_was_taken_comes_too() -> None:
    inbox = Arrivals()
    inbox.put(said("progress", b"1"), latest=True)
    assert inbox.take(0) == said("progress", b"1")
    inbox.put(said("progress", b"2"), latest=True)
    assert inbox.take(0) == said("progress", b"2")
    assert inbox.take(0) is None


def test_even_empty_messages_fill_the_inbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "INBOX_BYTES", 10 * OVERHEAD_BYTES)
    inbox = Arrivals()
    for number in range(100):
        inbox.put(said(f"t/{number}", b""), latest=number % 2 == 0)
    assert len(inbox) == 10
    while inbox.take(0) is not None:
        pass
    inbox.put(said("t", b""))
    assert inbox.take(0) == said("t", b"")


def test_a_larger_message_that_does_not_fit_leaves_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "INBOX_BYTES", OVERHEAD_BYTES + 10)
    inbox = Arrivals()
    inbox.put(said("progress", b"short"), latest=True)
    inbox.put(said("progress", bytes(1000)), latest=True)
    assert inbox.take(0) == said("progress", b"short")
    inbox.put(said("progress", bytes(10)), latest=True)
    assert inbox.take(0) is not None, "its room is free again"
