"""The round state machine with a fake clock."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fixtures.clockwork import FIRST, PLAN, SECOND, Run, grant_of, offer_of, waits

from sparsyedge.coordinator.rounds.events import (
    Accept,
    ChunkReceived,
    CloseRound,
    Command,
    DeviceOffline,
    DeviceOnline,
    ExtendRound,
    FailRun,
    FinishRun,
    Interrupted,
    ModelReady,
    OfferReceived,
    OpenRound,
    Refuse,
    StopRequested,
    Tick,
    UpdateInvalid,
    UpdateVerified,
    UploadComplete,
    VerifyUpdate,
)
from sparsyedge.coordinator.rounds.grants import UPLOAD_IDLE_S
from sparsyedge.coordinator.rounds.stages import Failed, Finished, Open, Waiting
from sparsyedge.coordinator.rounds.state_machine import MAX_EXTENSIONS


@pytest.fixture
def run() -> Run:
    """A run whose first round is open for three devices."""
    run = Run()
    run.online("d1", "d2", "d3")
    return run


def only_refusal(commands: list[Command]) -> str:
    (refusal,) = commands
    assert isinstance(refusal, Refuse)
    return refusal.reason


# ---- opening ---------------------------------------------------------------------------------------------------------


def test_round_1_opens_when_enough_devices_are_online() -> None:
    run = Run()
    run.online("d2", "d1")
    assert isinstance(run.state.stage, Waiting)
    run.now_s = 5.0
    run.online("d3")
    assert run.all(OpenRound) == [OpenRound(1, ("d1", "d2", "d3"), 105.0)]


def test_the_cohort_has_the_asked_size_however_many_are_online() -> None:
    run = Run(replace(PLAN, min_devices=6))
    run.online(*(f"d{index}" for index in range(6)))
    assert len(run.open.cohort) == 3


def test_a_device_that_left_does_not_count() -> None:
    run = Run()
    run.online("d1", "d2")
    run.feed(DeviceOffline("d2", "boot"))
    run.online("d3")
    assert isinstance(run.state.stage, Waiting)


def test_the_will_of_an_earlier_start_does_not_take_a_device_away() -> None:
    run = Run()
    run.feed(DeviceOnline("d1", "first"), DeviceOnline("d1", "second"), DeviceOffline("d1", "first"))
    assert dict(run.state.online) == {"d1": "second"}


def test_a_device_that_comes_late_takes_part_in_the_next_round(run: Run) -> None:
    run.online("d4")
    assert run.open.cohort == ("d1", "d2", "d3")
    assert "is not in the cohort of round 1" in only_refusal(run.feed(offer_of("d4")))


def test_later_rounds_open_with_fewer_devices_than_the_first(run: Run) -> None:
    for device in ("d1", "d2", "d3"):
        run.deliver(device)
    run.feed(DeviceOffline("d3", "boot"), ModelReady(SECOND))
    assert run.open.cohort == ("d1", "d2")
    assert run.open.model == SECOND


# ---- accepting -------------------------------------------------------------------------------------------------------


def test_an_offer_is_granted_then_verified_then_accepted(run: Run) -> None:
    assert run.feed(offer_of("d1")) == [grant_of("d1")]
    assert run.feed(UploadComplete("d1", "update-of-d1")) == [VerifyUpdate("d1", "update-of-d1")]
    assert run.feed(UpdateVerified("d1", "update-of-d1")) == [Accept("d1", 1, "update-of-d1")]


def test_an_update_is_accepted_once(run: Run) -> None:
    run.deliver("d1")
    assert run.feed(UpdateVerified("d1", "update-of-d1")) == []
    assert run.feed(UploadComplete("d1", "update-of-d1")) == []
    assert len(run.all(Accept)) == 1


def test_an_accepted_update_that_is_offered_again_is_accepted_again_without_an_upload(run: Run) -> None:
    run.deliver("d1")
    assert run.feed(offer_of("d1")) == [Accept("d1", 1, "update-of-d1", again=True)]


def test_an_accepted_update_is_acknowledged_even_after_its_round_closed(run: Run) -> None:
    for device in ("d1", "d2", "d3"):
        run.deliver(device)
    again = [Accept("d1", 1, "update-of-d1", again=True)]
    assert run.feed(offer_of("d1")) == again
    run.feed(ModelReady(SECOND))
    assert run.feed(offer_of("d1")) == again


def test_another_update_of_the_same_device_is_refused(run: Run) -> None:
    run.deliver("d1")
    reason = only_refusal(run.feed(offer_of("d1", update="other")))
    assert "already accepted for round 1" in reason


def test_a_new_hash_replaces_an_upload_that_is_not_complete(run: Run) -> None:
    run.feed(offer_of("d1"))
    assert run.feed(offer_of("d1", update="other")) == [grant_of("d1", update="other")]
    assert run.feed(UploadComplete("d1", "update-of-d1")) == []


def test_an_upload_that_was_never_granted_is_ignored(run: Run) -> None:
    assert run.feed(UploadComplete("d1", "x"), UpdateVerified("d1", "x"), UpdateInvalid("d1", "x", "bad")) == []


@pytest.mark.parametrize(
    ("offer", "reason"),
    [
        (offer_of("d1", run="r0"), "is for run r0, the fleet works on run r1"),
        (offer_of("d1", round_number=2), "round 2 is not open: round 1 is"),
        (offer_of("stranger"), "device stranger is not in the cohort of round 1"),
        (offer_of("d1", base=SECOND), f"starts from model {SECOND[:12]}, round 1 from {FIRST[:12]}"),
        (offer_of("d1", update_bytes=1001), "has 1001 bytes, at most 1000 are allowed"),
    ],
    ids=["run", "round", "cohort", "base", "size"],
)
def test_an_offer_that_does_not_fit_is_refused_with_a_reason(run: Run, offer: OfferReceived, reason: str) -> None:
    assert reason in only_refusal(run.feed(offer))


def test_a_refusal_names_the_run_and_round_that_the_device_named(run: Run) -> None:
    (refusal,) = run.feed(offer_of("d1", round_number=9, run="r0"))
    assert isinstance(refusal, Refuse)
    assert (refusal.run, refusal.round) == ("r0", 9)


def test_an_invalid_update_is_refused_and_the_device_may_offer_another(run: Run) -> None:
    run.feed(offer_of("d1"))
    assert only_refusal(run.feed(UpdateInvalid("d1", "update-of-d1", "it holds NaN"))) == "it holds NaN"
    assert run.feed(offer_of("d1", update="repaired")) == [grant_of("d1", update="repaired")]


def test_uploads_in_flight_are_bounded_by_their_bytes() -> None:
    run = Run(replace(PLAN, upload_bytes=19))
    run.online("d1", "d2", "d3")
    run.feed(offer_of("d1"))
    assert waits(run.feed(offer_of("d2")))
    assert run.feed(offer_of("d1")) == [grant_of("d1")]
    run.feed(UpdateVerified("d1", "update-of-d1"))
    assert run.feed(offer_of("d2")) == [grant_of("d2")]


def test_an_update_that_is_larger_than_all_the_room_goes_alone() -> None:
    run = Run(replace(PLAN, upload_bytes=5))
    run.online("d1", "d2", "d3")
    assert run.feed(offer_of("d1")) == [grant_of("d1")]
    assert waits(run.feed(offer_of("d2")))


def test_an_upload_that_went_silent_gives_its_place_away() -> None:
    run = Run(replace(PLAN, upload_bytes=19, deadline_s=10 * UPLOAD_IDLE_S))
    run.online("d1", "d2", "d3")
    run.feed(offer_of("d1"))
    run.now_s = UPLOAD_IDLE_S - 1
    run.feed(ChunkReceived("d1"))
    run.now_s = UPLOAD_IDLE_S + 1
    assert waits(run.feed(offer_of("d2")))
    run.now_s = 2 * UPLOAD_IDLE_S - 1
    assert run.feed(offer_of("d2")) == [grant_of("d2")]


# ---- closing ---------------------------------------------------------------------------------------------------------


def test_a_round_closes_as_soon_as_the_whole_cohort_answered(run: Run) -> None:
    run.deliver("d3")
    run.deliver("d1")
    assert run.deliver("d2") == [Accept("d2", 1, "update-of-d2"), CloseRound(1, ("d1", "d2", "d3"))]


def test_a_round_closes_at_its_deadline_with_k_of_n(run: Run) -> None:
    run.deliver("d3")
    run.deliver("d1")
    run.now_s = 99.9
    assert run.feed(Tick()) == []
    run.now_s = 100.0
    assert run.feed(Tick()) == [CloseRound(1, ("d1", "d3"))]


def test_a_round_does_not_close_early_because_a_member_is_offline(run: Run) -> None:
    run.deliver("d1")
    run.deliver("d2")
    run.feed(DeviceOffline("d3", "boot"), Tick())
    assert isinstance(run.state.stage, Open)
    run.online("d3")
    assert run.deliver("d3")[-1] == CloseRound(1, ("d1", "d2", "d3"))


def test_a_late_update_is_refused_with_a_reason(run: Run) -> None:
    run.deliver("d1")
    run.deliver("d2")
    run.now_s = 101.0
    commands = run.feed(offer_of("d3"))
    assert commands[0] == CloseRound(1, ("d1", "d2"))
    assert only_refusal(commands[1:]) == "round 1 is not open: round 1 has just closed"
    run.feed(ModelReady(SECOND))
    assert only_refusal(run.feed(offer_of("d3"))) == "round 1 is not open: round 2 is"


def test_an_upload_that_completes_after_the_deadline_is_not_accepted(run: Run) -> None:
    run.deliver("d1")
    run.deliver("d2")
    run.feed(offer_of("d3"))
    run.now_s = 100.0
    assert run.feed(UploadComplete("d3", "update-of-d3")) == [CloseRound(1, ("d1", "d2"))]


def test_the_last_model_finishes_the_run(run: Run) -> None:
    for device in ("d1", "d2", "d3"):
        run.deliver(device)
    run.feed(ModelReady(SECOND))
    for device in ("d1", "d2", "d3"):
        run.deliver(device, round_number=2, base=SECOND)
    assert run.feed(ModelReady("c" * 64)) == [FinishRun()]
    assert "the run is finished" in only_refusal(run.feed(offer_of("d9", round_number=2)))


# ---- too few updates -------------------------------------------------------------------------------------------------


def test_a_deadline_with_too_few_updates_is_extended(run: Run) -> None:
    run.deliver("d1")
    run.now_s = 100.0
    assert run.feed(Tick()) == [ExtendRound(1, ("d1", "d2", "d3"), 200.0, 1)]
    run.deliver("d2")
    run.now_s = 200.0
    assert run.feed(Tick()) == [CloseRound(1, ("d1", "d2"))]


def test_an_extended_round_replaces_absent_members_by_devices_that_are_there(run: Run) -> None:
    run.deliver("d1")
    run.online("d4")
    run.feed(DeviceOffline("d1", "boot"), DeviceOffline("d2", "boot"))
    run.now_s = 100.0
    run.feed(Tick())
    # d1 has answered and keeps its place; d2 has not and loses it.
    assert run.open.cohort == ("d1", "d3", "d4")
    assert "is not in the cohort" in only_refusal(run.feed(offer_of("d2")))


def test_an_absent_member_that_nobody_can_replace_keeps_its_place(run: Run) -> None:
    run.feed(DeviceOffline("d2", "boot"))
    run.now_s = 100.0
    run.feed(Tick())
    assert run.open.cohort == ("d1", "d2", "d3")


def test_a_run_fails_with_a_sentence_when_extensions_are_used_up(run: Run) -> None:
    run.deliver("d1")
    run.feed(DeviceOffline("d3", "boot"))
    for deadline in range(1, MAX_EXTENSIONS + 1):
        run.now_s = 100.0 * deadline
        assert isinstance(run.feed(Tick())[0], ExtendRound)
    run.now_s += 100.0
    (command,) = run.feed(Tick())
    assert isinstance(command, FailRun)
    assert "round 1 of run r1 has 1 of 2 updates that it needs, after 4 deadlines of 100 s" in command.reason
    assert "2 of the 3 devices in its cohort are online" in command.reason
    assert isinstance(run.state.stage, Failed)


# ---- stopping --------------------------------------------------------------------------------------------------------


def test_a_stop_request_lets_the_open_round_complete(run: Run) -> None:
    assert run.feed(StopRequested()) == []
    for device in ("d1", "d2", "d3"):
        run.deliver(device)
    assert run.feed(ModelReady(SECOND)) == [FinishRun()]


def test_a_stop_request_is_not_delayed_by_extensions(run: Run) -> None:
    run.feed(StopRequested())
    run.deliver("d1")
    run.now_s = 100.0
    assert run.feed(Tick()) == [FinishRun()]


def test_a_stop_request_ends_a_run_that_waits_for_devices() -> None:
    assert Run().feed(StopRequested()) == [FinishRun()]


def test_an_interrupt_gives_the_open_round_up(run: Run) -> None:
    run.deliver("d1")
    assert run.feed(Interrupted()) == [FinishRun()]
    assert isinstance(run.state.stage, Finished)
    assert run.feed(Interrupted()) == []


def test_the_same_events_give_the_same_commands_whatever_order_devices_came_in() -> None:
    cohorts = set()
    for order in (("d1", "d2", "d3", "d4", "d5"), ("d5", "d3", "d1", "d4", "d2")):
        run = Run(replace(PLAN, min_devices=5))
        run.online(*order)
        cohorts.add(run.open.cohort)
    assert len(cohorts) == 1
