"""Devices that fail in round after round: the round state machine with a fake clock."""

from __future__ import annotations

from dataclasses import replace

from fixtures.clockwork import PLAN, SECOND, Run, offer_of

from sparsyedge.coordinator.rounds.conduct import LONGEST_ROUNDS, STRIKES, Conduct, struck
from sparsyedge.coordinator.rounds.events import (
    CloseRound,
    DeviceUnfit,
    ModelReady,
    OpenRound,
    Quarantine,
    Refuse,
    Released,
    ReplaceMember,
    Tick,
    UpdateInvalid,
    UploadComplete,
)
from sparsyedge.coordinator.rounds.table import Table


def running(*devices: str, **changes: object) -> Run:
    run = Run(replace(PLAN, rounds=99, **changes))  # type: ignore[arg-type]
    run.online(*devices)
    return run


def refuse_update_of(run: Run, device: str) -> None:
    event = offer_of(device, round_number=run.open.round, base=run.open.model)
    update = event.offer.update.sha256
    run.feed(event, UploadComplete(device, update), UpdateInvalid(device, update, "it holds NaN"))


def next_round(run: Run) -> None:
    run.feed(Tick(), ModelReady(SECOND))


def test_a_member_whose_update_was_refused_is_replaced_while_others_are_there() -> None:
    run = running("d1", "d2", "d3", "d4")
    run.online("d4")
    bad = run.open.cohort[0]
    spare = next(device for device in ("d1", "d2", "d3", "d4") if device not in run.open.cohort)
    refuse_update_of(run, bad)
    (replaced,) = run.all(ReplaceMember)
    assert (replaced.device, replaced.substitute) == (bad, spare)
    for device in run.open.cohort:
        run.deliver(device)
    assert isinstance(run.commands[-1], CloseRound)


def test_a_member_that_sends_rubbish_again_and_again_is_soon_not_heard_any_more() -> None:
    run = running("d1", "d2", "d3", min_updates=3)
    for _ in range(9):
        refuse_update_of(run, "d2")
    reasons = [command.reason for command in run.all(Refuse)]
    assert reasons.count("it holds NaN") == 3
    assert reasons[-1] == "3 updates of device d2 were refused in this round"


def test_the_same_cause_in_three_rounds_puts_a_device_in_quarantine() -> None:
    run = running("d1", "d2", "d3", min_updates=2)
    for number in range(1, STRIKES + 1):
        assert "d2" in run.open.cohort
        refuse_update_of(run, "d2")
        for device in ("d1", "d3"):
            run.deliver(device, round_number=number, base=run.open.model)
        next_round(run)
    assert run.all(Quarantine) == [Quarantine("d2", STRIKES + 3, "its updates were refused")]
    cohorts = []
    for _ in range(3):
        cohorts.append(run.open.cohort)
        for device in ("d1", "d3"):
            run.deliver(device, round_number=run.open.round, base=run.open.model)
        if isinstance(run.commands[-1], CloseRound):
            next_round(run)
    assert cohorts == [("d1", "d3"), ("d1", "d3"), ("d1", "d2", "d3")]


def test_a_device_that_failed_is_out_for_longer_each_time_and_an_update_clears_it() -> None:
    conduct: Conduct | None = None
    rounds_out = []
    for number in range(1, 12):
        conduct = struck(conduct, "silent", "no update", round_number=number)
        rounds_out.append(max(0, conduct.until_round - number - 1))
    assert rounds_out == [0, 0, 2, 4, 8, 16, 32, 64, 64, 64, LONGEST_ROUNDS]
    assert struck(conduct, "invalid", "another cause", round_number=12).strikes == 1
    run = running("d1", "d2", "d3")
    run.feed(DeviceUnfit("d2", "boot", round=1))
    run.online("d2")
    run.deliver("d2")
    assert run.state.conduct == {}


def test_devices_in_quarantine_are_asked_all_the_same_where_too_few_are_left() -> None:
    run = running("d1", "d2", "d3", min_updates=3)
    quarantined = Conduct(cause="silent", reason="no update", strikes=3, last_round=1, until_round=50)
    for device in ("d1", "d2", "d3"):
        run.deliver(device)
    run.state = replace(run.state, conduct=Table({"d2": quarantined}))
    next_round(run)
    assert run.all(OpenRound)[-1].cohort == ("d1", "d2", "d3")


def test_the_operator_can_end_a_quarantine() -> None:
    run = running("d1", "d2", "d3")
    for device in ("d1", "d2", "d3"):
        run.deliver(device)
    quarantined = Conduct(cause="silent", reason="no update", strikes=3, last_round=1, until_round=50)
    run.state = replace(run.state, conduct=Table({"d2": quarantined}))
    assert run.feed(Released("d2")) == [Quarantine("d2", 0, "")]
    next_round(run)
    assert run.all(OpenRound)[-1].cohort == ("d1", "d2", "d3")


def test_a_member_that_shows_no_sign_of_an_update_in_its_time_is_replaced() -> None:
    run = running("d1", "d2", "d3", "d4", deadline_s=None, min_updates=3)
    run.now_s = 10.0
    for device in run.open.cohort:
        run.deliver(device)
    next_round(run)
    silent, *others = run.open.cohort
    for device in others:
        run.deliver(device, round_number=2, base=SECOND)
    run.now_s = run.open.deadlines[silent]
    run.feed(Tick())
    (replaced,) = run.all(ReplaceMember)
    assert replaced.device == silent
