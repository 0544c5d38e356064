"""Packets that the broker has yet to answer, and subscriptions that it has yet to confirm."""

from __future__ import annotations

from sparsyedge.edge.protocol.in_flight import WINDOW_BYTES, WINDOW_MESSAGES, InFlight, Window
from sparsyedge.edge.protocol.subscriptions import SILENCE_S, Subscriptions


def test_a_packet_is_in_flight_until_it_is_answered() -> None:
    packets: InFlight[str] = InFlight()
    packets.sent(1, "a")
    packets.sent(2, "b")
    packets.answered(1)
    assert packets.ids == {2}
    assert list(packets.facts) == ["b"]


def test_an_answer_that_overtakes_the_sending_thread_is_not_waited_for() -> None:
    packets: InFlight[str] = InFlight()
    packets.answered(7)
    packets.sent(7, "a")
    assert len(packets) == 0
    packets.sent(7, "the same id, used again")
    assert len(packets) == 1


def test_the_window_is_full_by_number_or_by_bytes_and_lets_one_large_message_go_alone() -> None:
    window = Window()
    assert window.has_room(2 * WINDOW_BYTES)
    window.sent(0, 2 * WINDOW_BYTES)
    assert not window.has_room(1)
    window.acknowledged(0)
    for packet in range(WINDOW_MESSAGES):
        assert window.has_room(1)
        window.sent(packet, 1)
    assert not window.has_room(1)


def test_a_renewal_is_complete_with_the_last_of_its_answers() -> None:
    subscriptions = Subscriptions()
    subscriptions.sent(1, 0.0)
    subscriptions.sent(2, 0.0)
    assert not subscriptions.begin_renewal()
    subscriptions.sent(3, 0.0)
    assert not subscriptions.answered(2)
    assert not subscriptions.answered(3), "it was asked for later"
    assert subscriptions.answered(1)
    assert not subscriptions.answered(4)


def test_a_renewal_whose_answers_came_first_is_complete_at_once() -> None:
    subscriptions = Subscriptions()
    subscriptions.answered(1)
    subscriptions.sent(1, 0.0)
    assert subscriptions.begin_renewal()


def test_a_broker_is_silent_only_while_it_owes_an_answer_and_sends_nothing() -> None:
    subscriptions = Subscriptions()
    assert not subscriptions.take_silence(2 * SILENCE_S)
    subscriptions.sent(1, 0.0)
    subscriptions.heard(10.0)
    assert not subscriptions.take_silence(SILENCE_S)
    assert subscriptions.take_silence(10.0 + SILENCE_S)
    assert not subscriptions.take_silence(20.0 + SILENCE_S), "it was said already"


def test_one_message_without_acknowledgement_may_be_unwritten_at_a_time() -> None:
    window = Window()
    assert window.may_tell
    window.told(1, 100)
    assert not window.may_tell
    window.acknowledged(1)
    assert window.may_tell
    assert len(window) == 0


def test_a_message_that_is_written_before_it_is_noted_is_not_waited_for() -> None:
    window = Window()
    window.acknowledged(1)
    window.told(1, 100)
    assert window.may_tell
    assert len(window) == 0


def test_a_lost_connection_takes_the_unwritten_message_along_and_leaves_the_others() -> None:
    window = Window()
    window.sent(1, 100)
    window.told(2, 100)
    window.forget_told()
    assert window.may_tell
    assert len(window) == 1
    window.forget_told()
    assert len(window) == 1
