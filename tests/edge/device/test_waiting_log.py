"""What a device says while it waits."""

from __future__ import annotations

import logging
import time

import pytest
from fixtures.fake_coordinator import round_task

from sparsyedge.edge.device.notify import Supervisor
from sparsyedge.edge.device.waiting_log import FIRST_S, REMIND_S, WaitingLog, between_rounds
from sparsyedge.edge.protocol.channel import Health
from sparsyedge.edge.protocol.messages import RoundTask

UP = Health(broker="broker:1883")


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def waiting(clock: Clock, caplog: pytest.LogCaptureFixture) -> WaitingLog:
    caplog.set_level(logging.INFO)
    return WaitingLog(Supervisor({}), clock=clock)


def wait(waiting: WaitingLog, clock: Clock, seconds: float, subject: str = "s", sentence: str = "waiting") -> None:
    until_s = clock.now_s + seconds
    while clock.now_s < until_s:
        waiting.note(subject, sentence)
        clock.now_s += 0.5


def test_a_short_wait_is_not_worth_a_line(waiting: WaitingLog, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    for subject in "abc":
        wait(waiting, clock, FIRST_S, subject)
    assert caplog.messages == []


def test_a_long_wait_is_said_once_a_minute_with_its_length(
    waiting: WaitingLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    wait(waiting, clock, FIRST_S + 2 * REMIND_S + 1)
    assert caplog.messages == ["waiting, for 5 s now", "waiting, for 65 s now", "waiting, for 2 min now"]


def test_a_wait_that_was_over_begins_anew(waiting: WaitingLog, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    wait(waiting, clock, FIRST_S + 1)
    waiting.over()
    wait(waiting, clock, FIRST_S)
    assert len(caplog.messages) == 1
    wait(waiting, clock, 1)
    assert caplog.messages == ["waiting, for 5 s now"] * 2


AT = time.mktime((2026, 5, 4, 14, 5, 0, 0, 0, -1))
OPEN = round_task(round=7, rounds=9, cohort=("d1", "d2", "d3"), deadline_unix_s=AT)
LAST = round_task(round=9, rounds=9, state="closed")


@pytest.mark.parametrize(
    ("task", "health", "is_member", "sentence"),
    [
        (None, UP, False, "waiting for the coordinator: there is no task"),
        (None, Health(0, "broker:1883", 40.0), False, "waiting for the broker at broker:1883"),
        (OPEN, Health(0, "broker:1883", 40.0), True, "waiting for the broker at broker:1883"),
        (OPEN, UP, True, "waiting for round 8: this device's update is in, 2 others may take until 14:05"),
        (OPEN, UP, False, "waiting for round 8: round 7 goes on until 14:05 at most with 3 other devices"),
        (round_task(round=7, rounds=9, state="closed"), UP, True, "waiting for round 8: round 7 of 9 is closed"),
        (
            round_task(round=9, rounds=9, state="closed"),
            UP,
            True,
            "waiting for the end of the run: round 9 of 9 is closed",
        ),
        (round_task(state="finished"), UP, True, "waiting for the next run: run demo is over"),
    ],
)
def test_a_device_says_what_it_waits_for(
    task: RoundTask | None, health: Health, is_member: bool, sentence: str
) -> None:
    assert between_rounds(task, health, is_member=is_member)[1] == sentence
