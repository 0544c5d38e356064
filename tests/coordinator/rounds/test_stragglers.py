"""Slow devices, lost devices and pauses: the round state machine with a fake clock and deadlines that it learns."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fixtures.clockwork import FIRST, PLAN, SECOND, Run, offer_of

from sparsyedge.coordinator.rounds.cohort import sample_cohort
from sparsyedge.coordinator.rounds.deadlines import FIRST_S, LEAST_S, MOST_S, OFFLINE_GRACE_S, patience_s, remember
from sparsyedge.coordinator.rounds.events import (
    CloseRound,
    DeviceOffline,
    ExtendRound,
    ModelReady,
    OpenRound,
    PauseRequested,
    Refuse,
    ResumeRequested,
    Tick,
)
from sparsyedge.coordinator.rounds.progress import OpenRecord, Progress
from sparsyedge.coordinator.rounds.stages import Closing, Open, Waiting
from sparsyedge.coordinator.rounds.state_machine import restore
from sparsyedge.coordinator.rounds.table import Table

LEARNED = replace(PLAN, deadline_s=None, rounds=9)
HALF_AN_HOUR_S = 1800.0


def begun(**changes: object) -> Run:
    run = Run(replace(LEARNED, **changes))  # type: ignore[arg-type]
    run.online("d1", "d2", "d3")
    return run


# ---- what is learned -------------------------------------------------------------------------------------------------


def test_a_device_without_a_past_gets_two_hours() -> None:
    assert patience_s(()) == FIRST_S == 7200.0


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ((100.0,), 200.0),
        ((1.0, 2.0), LEAST_S),
        ((HALF_AN_HOUR_S,) * 3, 2 * HALF_AN_HOUR_S),
        ((100.0,) * 9 + (5000.0,), 200.0),
        ((100.0,) * 8 + (5000.0,) * 2, 10_000.0),
        ((1e9,), MOST_S),
    ],
)
def test_a_device_gets_twice_what_it_needs_in_nine_of_ten_rounds(times: tuple[float, ...], expected: float) -> None:
    assert patience_s(times) == expected


def test_only_the_last_ten_times_count() -> None:
    history: Table[tuple[float, ...]] = Table()
    for seconds in range(15):
        history = remember(history, "d1", float(seconds))
    assert history["d1"] == tuple(float(seconds) for seconds in range(5, 15))


def test_half_an_hour_per_epoch_works_with_default_settings() -> None:
    run = begun(min_updates=3)
    for number, base in ((1, FIRST), (2, SECOND)):
        opened_s = run.now_s
        run.now_s = opened_s + HALF_AN_HOUR_S
        for device in ("d1", "d2", "d3"):
            run.deliver(device, round_number=number, base=base)
        assert isinstance(run.state.stage, Closing)
        run.feed(ModelReady(SECOND))
    assert [command.round for command in run.all(OpenRound)] == [1, 2, 3]
    assert run.all(ExtendRound) == []
    assert run.open.deadlines == dict.fromkeys(("d1", "d2", "d3"), run.now_s + 2 * HALF_AN_HOUR_S)


def test_a_slow_device_is_waited_for_longer_than_a_fast_one() -> None:
    run = begun(min_updates=2)
    run.now_s = 400.0
    run.deliver("d1")
    run.deliver("d2")
    run.now_s = HALF_AN_HOUR_S
    run.deliver("d3")
    run.feed(ModelReady(SECOND))
    opened_s = run.now_s
    assert {device: deadline - opened_s for device, deadline in run.open.deadlines.items()} == {
        "d1": 800.0,
        "d2": 800.0,
        "d3": 2 * HALF_AN_HOUR_S,
    }
    run.deliver("d2", round_number=2, base=SECOND)
    run.now_s = opened_s + HALF_AN_HOUR_S
    # d3 is in time and d1's own deadline is long past, so the round waits for nobody.
    assert run.deliver("d3", round_number=2, base=SECOND)[-1] == CloseRound(2, ("d2", "d3"))


# ---- who is gone -----------------------------------------------------------------------------------------------------


def test_a_device_that_is_gone_is_not_waited_for_once_enough_have_answered() -> None:
    run = begun(min_updates=2)
    run.now_s = 30.0
    run.feed(DeviceOffline("d3", "boot"))
    run.deliver("d1")
    run.deliver("d2")
    run.now_s = 30.0 + OFFLINE_GRACE_S - 1
    assert run.feed(Tick()) == []
    run.now_s = 30.0 + OFFLINE_GRACE_S
    assert run.feed(Tick()) == [CloseRound(1, ("d1", "d2"))]


def test_a_device_that_comes_back_in_time_counts() -> None:
    run = begun(min_updates=2)
    run.feed(DeviceOffline("d3", "boot"))
    run.now_s = OFFLINE_GRACE_S / 2
    run.deliver("d1")
    run.deliver("d2")
    run.online("d3")
    run.now_s = OFFLINE_GRACE_S + 1
    assert run.feed(Tick()) == []
    assert run.deliver("d3")[-1] == CloseRound(1, ("d1", "d2", "d3"))


def test_a_deadline_that_the_user_set_holds_for_everybody() -> None:
    run = begun(min_updates=2, deadline_s=1000.0)
    run.feed(DeviceOffline("d3", "boot"))
    run.deliver("d1")
    run.deliver("d2")
    run.now_s = 999.0
    assert run.feed(Tick()) == []
    run.now_s = 1000.0
    assert run.feed(Tick()) == [CloseRound(1, ("d1", "d2"))]


# ---- over-selection --------------------------------------------------------------------------------------------------


def test_more_devices_are_asked_than_updates_are_needed() -> None:
    run = Run(replace(LEARNED, cohort_size=2, min_updates=2, min_devices=3, over_selection=0.5))
    run.online("d1", "d2", "d3")
    assert run.open.cohort == ("d1", "d2", "d3")
    run.deliver("d3")
    assert run.deliver("d1")[-1] == CloseRound(1, ("d1", "d3"))
    (late,) = run.feed(offer_of("d2"))
    assert isinstance(late, Refuse)
    assert late.reason == "round 1 is not open: round 1 has just closed"


def test_without_over_selection_the_whole_cohort_is_needed() -> None:
    assert replace(PLAN, cohort_size=10).asked == 10
    assert replace(PLAN, cohort_size=10, over_selection=0.25).asked == 13


# ---- pauses ----------------------------------------------------------------------------------------------------------


def test_a_paused_run_completes_its_round_and_opens_no_other() -> None:
    run = begun()
    run.feed(PauseRequested())
    for device in ("d1", "d2", "d3"):
        run.deliver(device)
    assert run.feed(ModelReady(SECOND)) == []
    assert run.state.stage == Waiting(2, SECOND)
    (opened,) = run.feed(ResumeRequested())
    assert isinstance(opened, OpenRound)
    assert opened.round == 2


# ---- after a restart -------------------------------------------------------------------------------------------------


def test_a_restored_round_has_its_updates_and_its_whole_time_again() -> None:
    opened = OpenRecord(round=3, cohort=("d1", "d2"), extensions=2, opened_at=0.0, accepted={"d1": "hash"})
    progress = Progress(
        closed_round=2, model_id=SECOND, base_model_id=FIRST, closed_accepted={"d2": "old"}, open=opened
    )
    state = restore(LEARNED, SECOND, progress, 50.0, times={"d1": (100.0,)})
    assert isinstance(state.stage, Open)
    assert (state.stage.round, dict(state.stage.accepted), state.stage.extensions) == (3, {"d1": "hash"}, 0)
    assert state.stage.deadlines == {"d1": 250.0, "d2": 50.0 + FIRST_S}
    assert (state.closed_round, dict(state.closed_accepted)) == (2, {"d2": "old"})


# ---- who is chosen ---------------------------------------------------------------------------------------------------


def test_devices_take_turns() -> None:
    devices = ["d1", "d2", "d3", "d4", "d5"]
    chosen = [sample_cohort(devices, 2, seed=0, round_number=number, policy="round-robin") for number in range(1, 6)]
    assert chosen == [("d1", "d2"), ("d3", "d4"), ("d1", "d5"), ("d2", "d3"), ("d4", "d5")]
    assert sample_cohort([], 2, seed=0, round_number=1, policy="round-robin") == ()
    assert sample_cohort(["d1"], 2, seed=3, round_number=7, policy="round-robin") == ("d1",)


def test_the_policy_decides_who_is_chosen() -> None:
    devices = [f"d{index}" for index in range(9)]
    turns = sample_cohort(devices, 3, seed=0, round_number=2, policy="round-robin")
    assert turns == ("d3", "d4", "d5")
    lots = sample_cohort(devices, 3, seed=0, round_number=2)
    assert lots == sample_cohort(reversed(devices), 3, seed=0, round_number=2)
    assert lots != turns
