"""Limits on newcomers' requests, and on the log lines during a flood."""

from __future__ import annotations

import pytest

from sparsyedge.coordinator.authority.newcomer_limits import SHARE, SHARE_S, WORK_PER_S, Newcomers


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_device_that_asks_every_three_seconds_never_asks_too_much() -> None:
    clock = Clock()
    newcomers = Newcomers(clock)
    for _ in range(200):
        assert not newcomers.is_too_much("pi-01")
        clock.now_s += 3.0


def test_a_device_that_floods_is_beyond_its_share_and_nobody_else_is() -> None:
    clock = Clock()
    newcomers = Newcomers(clock)
    assert [newcomers.is_too_much("bad") for _ in range(SHARE + 1)] == [False] * SHARE + [True]
    assert not newcomers.is_too_much("pi-01")
    clock.now_s += SHARE_S
    assert not newcomers.is_too_much("bad")


def test_keys_are_computed_for_so_many_requests_a_second() -> None:
    clock = Clock()
    newcomers = Newcomers(clock)
    for _ in range(3):
        assert sum(newcomers.may_work() for _ in range(1000)) == WORK_PER_S
        clock.now_s += 1.0


def test_a_flood_is_a_line_a_minute_and_one_count(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    newcomers = Newcomers(clock)
    refused = 0
    for _ in range(300):
        for _ in range(1000):
            newcomers.refuse("bad", "no")
        refused += sum(newcomers.take_refused().values())
        clock.now_s += 1.0
    assert refused == 300_000
    lines = [record.getMessage() for record in caplog.records]
    assert sum("more enrolments in the last minute" in line for line in lines) == 4
    assert len(lines) == 5 + 4
