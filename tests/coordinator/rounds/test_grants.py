"""Who may upload when room is short: the round state machine with a fake clock."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fixtures.clockwork import PLAN, Run, offer_of

from sparsyedge.coordinator.rounds.events import AskToWait, ChunkReceived, CloseRound, Command, GrantUpload
from sparsyedge.coordinator.rounds.grants import (
    ASKED_S,
    ASKS_PER_S,
    LATEST,
    SLOWEST_BYTES_PER_S,
    UPLOAD_IDLE_S,
    left,
    uploads_until,
)
from sparsyedge.coordinator.rounds.stages import Open

LARGE = 600_000


@pytest.fixture
def run() -> Run:
    """Room for one large update at a time, and plenty of time."""
    plan = replace(PLAN, upload_bytes=LARGE, max_update_bytes=LARGE, deadline_s=10_000.0)
    run = Run(plan)
    run.online("d1", "d2", "d3")
    return run


def large(run: Run, device: str, update: str | None = None) -> list[Command]:
    return run.feed(offer_of(device, update=update, update_bytes=LARGE))


def granted(commands: list[Command]) -> bool:
    return any(isinstance(command, GrantUpload) for command in commands)


def test_a_member_that_offers_and_sends_nothing_holds_others_up_for_half_a_minute_at_most(run: Run) -> None:
    assert granted(large(run, "d1"))
    for second in range(1, int(UPLOAD_IDLE_S) + 1):
        run.now_s = float(second)
        # It repeats its offer, with another hash every time.
        large(run, "d1", update=f"{second:064x}")
        got = granted(large(run, "d2"))
        assert got == (second >= UPLOAD_IDLE_S)


def test_who_wasted_a_place_waits_for_everybody_else_and_is_told_so(run: Run) -> None:
    large(run, "d1")
    run.now_s = UPLOAD_IDLE_S
    assert granted(large(run, "d2"))
    (in_turn,) = large(run, "d3")
    assert isinstance(in_turn, AskToWait)
    assert in_turn.again_s is not None
    (answer,) = large(run, "d1")
    assert isinstance(answer, AskToWait)
    assert "stopped half-way and kept others waiting; those go first" in answer.reason
    assert answer.again_s is None
    run.deliver("d2")
    # d3 has asked since, so d1 waits although there is room.
    (again,) = large(run, "d1")
    assert isinstance(again, AskToWait)
    assert granted(large(run, "d3"))
    run.deliver("d3")


def test_who_wasted_a_place_gets_another_when_nobody_else_waits(run: Run) -> None:
    large(run, "d1")
    run.now_s = UPLOAD_IDLE_S
    large(run, "d2")
    run.deliver("d2")
    run.now_s += ASKED_S + 1
    assert granted(large(run, "d1"))


def test_chunks_that_trickle_do_not_hold_a_place_for_ever(run: Run) -> None:
    large(run, "d1")
    life_s = 2 * UPLOAD_IDLE_S + LARGE / SLOWEST_BYTES_PER_S
    while run.now_s < life_s - 10:
        run.now_s += 10
        run.feed(ChunkReceived("d1"))
        assert not granted(large(run, "d2"))
    run.now_s = life_s
    assert granted(large(run, "d2"))


def test_a_slow_upload_that_nobody_waits_for_goes_on_as_long_as_it_takes(run: Run) -> None:
    large(run, "d1")
    run.now_s = 5_000.0
    assert granted(large(run, "d1"))
    run.deliver("d1")


def test_one_hostile_member_does_not_keep_a_round_from_closing(run: Run) -> None:
    large(run, "d1")
    for device in ("d2", "d3"):
        while not granted(large(run, device)):
            run.now_s += 3.0
            large(run, "d1", update=f"{int(run.now_s):064x}")
        run.deliver(device)
    run.now_s = 10_000.0
    large(run, "d1")
    assert CloseRound(1, ("d2", "d3")) in run.commands


def test_devices_in_the_queue_ask_the_more_seldom_the_more_updates_are_missing() -> None:
    devices = [f"d{number:04d}" for number in range(2001)]
    plan = replace(PLAN, cohort_size=len(devices), min_updates=1, min_devices=len(devices), upload_bytes=LARGE)
    run = Run(replace(plan, max_update_bytes=LARGE, deadline_s=10_000.0))
    run.online(*devices)
    assert granted(large(run, devices[0]))
    (wait,) = large(run, devices[1])
    assert isinstance(wait, AskToWait)
    # All of them together ask at most a hundred times a second.
    assert wait.again_s is not None
    assert wait.again_s == pytest.approx(len(devices) / ASKS_PER_S)
    stage = run.state.stage
    assert isinstance(stage, Open)
    # It still counts as waiting when it asks again as late as it may.
    assert uploads_until(stage, devices[1]) > run.now_s + LATEST * wait.again_s


def test_a_waiting_device_that_goes_offline_does_not_count_for_long() -> None:
    devices = [f"d{number:04d}" for number in range(2001)]
    run = Run(replace(PLAN, cohort_size=2001, min_updates=1, min_devices=2001, deadline_s=10_000.0))
    run.online(*devices)
    stage = run.state.stage
    assert isinstance(stage, Open)
    asked = replace(stage, asked=stage.asked.set("d0001", 100.0).set("d0002", 5.0))
    assert uploads_until(left(asked, "d0001", 0.0), "d0001") == ASKED_S
    assert left(asked, "d0002", 0.0) is asked
    assert left(asked, "d0003", 0.0) is asked
