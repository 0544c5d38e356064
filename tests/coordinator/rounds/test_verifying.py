"""Uploads that are checked elsewhere: the verdict comes later, and the round goes on meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fixtures.clockwork import PLAN, Run, offer_of, waits

from sparsyedge.coordinator.rounds.events import (
    Accept,
    ChunkReceived,
    CloseRound,
    Command,
    DeviceOnline,
    DeviceUnfit,
    Event,
    GrantUpload,
    OfferReceived,
    Refuse,
    Tick,
    UpdateInvalid,
    UpdateVerified,
    UploadComplete,
    VerifyUpdate,
)
from sparsyedge.coordinator.rounds.grants import UPLOAD_IDLE_S

UPDATE = "update-of-d1"
COMPLETE, GOOD, BAD = (
    UploadComplete("d1", UPDATE),
    UpdateVerified("d1", UPDATE),
    UpdateInvalid("d1", UPDATE, "it holds NaN"),
)


def verifying(**changes: object) -> Run:
    """A round of three devices, in which the first one's update is being checked."""
    run = Run(replace(PLAN, **changes))  # type: ignore[arg-type]
    run.online("d1", "d2", "d3")
    assert run.feed(offer_of("d1"), COMPLETE) == [VerifyUpdate("d1", UPDATE)]
    return run


@pytest.mark.parametrize(
    "event",
    [COMPLETE, ChunkReceived("d1"), offer_of("d1"), offer_of("d1", update="another")],
    ids=["complete again", "a repeated chunk", "the same offer", "another offer"],
)
def test_nothing_that_the_device_sends_meanwhile_counts(event: Event) -> None:
    run = verifying()
    assert run.feed(event) == []
    assert run.feed(GOOD) == [Accept("d1", 1, UPDATE)]


def test_a_place_is_not_wasted_while_its_upload_is_checked() -> None:
    run = verifying(upload_bytes=19, deadline_s=10 * UPLOAD_IDLE_S)
    run.now_s = 3 * UPLOAD_IDLE_S
    assert waits(run.feed(offer_of("d2")))
    (accept,) = run.feed(GOOD)
    assert isinstance(accept, Accept)
    (grant,) = run.feed(offer_of("d2"))
    assert isinstance(grant, GrantUpload)


def test_an_update_that_was_here_before_the_deadline_counts_after_it() -> None:
    run = verifying()
    run.deliver("d2")
    run.now_s = run.open.deadline_s + 1
    assert run.feed(Tick()) == []
    accept, close = run.feed(GOOD)
    assert (accept, close) == (Accept("d1", 1, UPDATE), CloseRound(1, ("d1", "d2")))


def test_a_round_with_too_few_updates_is_not_extended_before_the_verdict() -> None:
    run = verifying(min_updates=1)
    run.now_s = run.open.deadline_s + 1
    assert run.feed(Tick()) == []
    assert run.feed(GOOD)[-1] == CloseRound(1, ("d1",))


def test_an_update_found_invalid_after_the_deadline_lets_the_round_go_on_without_it() -> None:
    run = verifying()
    run.deliver("d2")
    run.deliver("d3")
    run.now_s = run.open.deadline_s + 1
    commands = run.feed(BAD)
    assert isinstance(commands[0], Refuse)
    assert commands[-1] == CloseRound(1, ("d2", "d3"))


def test_a_member_whose_update_is_checked_is_not_replaced() -> None:
    run = verifying(deadline_s=None)
    run.online("d4")
    assert run.feed(DeviceUnfit("d1", "boot", 1), Tick()) == []
    assert run.feed(GOOD) == [Accept("d1", 1, UPDATE)]
    assert run.feed(DeviceOnline("d1", "boot")) == []


def test_uploads_of_others_go_on_while_one_is_checked() -> None:
    run = verifying()
    made: OfferReceived = offer_of("d2")
    commands: list[Command] = run.feed(made, UploadComplete("d2", "update-of-d2"), UpdateVerified("d2", "update-of-d2"))
    assert commands == [Accept("d2", 1, "update-of-d2")]
    assert run.open.verifying == 1
