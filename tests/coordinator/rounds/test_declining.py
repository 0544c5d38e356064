"""Members that decline to train: the round state machine with a fake clock."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fixtures.clockwork import PLAN, SECOND, Run, offer_of

from sparsyedge.coordinator.rounds.events import (
    CloseRound,
    DeviceOnline,
    DeviceUnfit,
    ModelReady,
    OpenRound,
    ReplaceMember,
    Tick,
)
from sparsyedge.coordinator.rounds.stages import Waiting


@pytest.fixture
def run() -> Run:
    """A run whose first round is open for three devices, with a deadline that the user set."""
    run = Run(replace(PLAN, rounds=9))
    run.online("d1", "d2", "d3")
    return run


def test_a_member_that_will_not_train_is_replaced_at_once_by_a_device_that_is_there(run: Run) -> None:
    run.online("d4")
    run.now_s = 7.0
    (replaced,) = run.feed(DeviceUnfit("d2", "boot"))
    assert replaced == ReplaceMember(1, 107.0, "d2", "d4")
    assert run.open.cohort == ("d1", "d3", "d4")
    for device in ("d1", "d3", "d4"):
        commands = run.deliver(device)
    assert commands[-1] == CloseRound(1, ("d1", "d3", "d4"))


def test_a_round_does_not_wait_for_a_member_that_will_not_train(run: Run) -> None:
    run.deliver("d1")
    run.deliver("d3")
    assert run.feed(DeviceUnfit("d2", "boot")) == [CloseRound(1, ("d1", "d3"))]


def test_the_rest_of_a_cohort_closes_the_round_when_the_one_that_declined_is_all_that_is_missing(run: Run) -> None:
    run.feed(DeviceUnfit("d2", "boot"))
    run.deliver("d1")
    assert run.deliver("d3")[-1] == CloseRound(1, ("d1", "d3"))


def test_a_round_with_too_few_updates_goes_on_until_somebody_can_help(run: Run) -> None:
    run.feed(DeviceUnfit("d1", "boot"), DeviceUnfit("d2", "boot"))
    run.deliver("d3")
    run.now_s = 50.0
    assert run.feed(Tick()) == []
    (replaced,) = run.feed(DeviceOnline("d4", "boot"))
    assert replaced == ReplaceMember(1, 150.0, "d1", "d4")
    assert run.open.cohort == ("d2", "d3", "d4")
    assert run.deliver("d4")[-1] == CloseRound(1, ("d3", "d4"))


def test_a_member_that_can_train_again_keeps_its_place_where_nobody_has_taken_it(run: Run) -> None:
    run.feed(DeviceUnfit("d2", "boot"))
    run.online("d2")
    for device in ("d1", "d2", "d3"):
        commands = run.deliver(device)
    assert commands[-1] == CloseRound(1, ("d1", "d2", "d3"))


def test_two_devices_that_take_turns_at_declining_are_each_replaced_once(run: Run) -> None:
    run.online("d4")
    for _ in range(5):
        run.feed(DeviceUnfit("d2", "boot"), DeviceOnline("d2", "boot"))
        run.feed(DeviceUnfit("d4", "boot"), DeviceOnline("d4", "boot"))
    assert len(run.all(ReplaceMember)) == 1


def test_an_upload_under_way_keeps_its_place(run: Run) -> None:
    run.online("d4")
    run.feed(offer_of("d2"))
    assert run.feed(DeviceUnfit("d2", "boot")) == []
    assert run.open.cohort == ("d1", "d2", "d3")


def test_a_device_that_is_unfit_is_not_drawn_until_it_says_that_it_is_fit(run: Run) -> None:
    run.online("d4")
    run.feed(DeviceUnfit("d2", "boot"))
    for device in ("d1", "d3", "d4"):
        run.deliver(device)
    run.feed(ModelReady(SECOND))
    assert run.all(OpenRound)[-1].cohort == ("d1", "d3", "d4")


def test_what_went_wrong_in_one_round_does_not_keep_a_device_from_the_next(run: Run) -> None:
    run.feed(DeviceUnfit("d2", "boot", round=1))
    run.deliver("d1")
    run.deliver("d3")
    run.feed(Tick(), ModelReady(SECOND))
    assert run.all(OpenRound)[-1].cohort == ("d1", "d2", "d3")
    # The broker repeats the retained status; it is still about the round that is over.
    run.feed(DeviceUnfit("d2", "boot", round=1))
    assert run.state.unfit == {}


def test_round_1_does_not_open_for_devices_that_will_not_train() -> None:
    run = Run()
    run.feed(DeviceUnfit("d1", "boot"))
    run.online("d2", "d3")
    assert isinstance(run.state.stage, Waiting)
    run.online("d1")
    assert len(run.all(OpenRound)) == 1
