"""What devices say about their jobs, as the coordinator takes it: hostile until checked."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fixtures.clockwork import PLAN, Run

from sparsyedge.coordinator.fleet.activities import SOONEST_S, Activities
from sparsyedge.coordinator.rounds.events import DeviceOffline
from sparsyedge.edge.protocol.messages import Progress, encode


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def activities(clock: Clock) -> Activities:
    return Activities(clock=clock, wall_clock=lambda: clock.now_s + 5e8)


@pytest.fixture
def run() -> Run:
    run = Run(replace(PLAN, cohort_size=2, min_devices=2))
    run.online("a", "b")
    run.online("spare")
    assert run.open.cohort == ("a", "b")
    return run


def progress(step: int = 1, steps: int = 10, **changes: object) -> bytes:
    values = {"run": "r1", "round": 1, "phase": "train", "step": step, "steps": steps, **changes}
    return encode(Progress(**values))  # type: ignore[arg-type]


def test_the_last_word_of_a_member_is_kept_with_the_time(activities: Activities, run: Run, clock: Clock) -> None:
    assert activities.take("a", progress(1, loss=0.5, temperature_c=60.0), run.state) == ""
    clock.now_s += 5.0
    assert activities.take("a", progress(7, battery_percent=80.0), run.state) == ""
    said = activities.get("a")
    assert said is not None
    assert (said.device, said.round, said.phase, said.step, said.steps) == ("a", 1, "train", 7, 10)
    assert (said.loss, said.temperature_c, said.battery_percent) == (None, None, 80.0)
    assert said.at == clock.now_s + 5e8
    assert activities.changed == {"a"}


@pytest.mark.parametrize(
    ("device", "payload"),
    [
        ("spare", progress()),
        ("stranger", progress()),
        ("a", progress(run="other")),
        ("a", progress(round=2)),
        ("a", b""),
    ],
)
def test_what_is_about_nothing_present_is_ignored(
    activities: Activities, run: Run, device: str, payload: bytes
) -> None:
    assert activities.take(device, payload, run.state) == ""
    assert list(activities) == []
    assert activities.changed == set()


@pytest.mark.parametrize("payload", [b"x", b"{}", progress().replace(b'"step":1', b'"step":NaN')])
def test_what_cannot_be_read_is_refused_with_a_reason(activities: Activities, run: Run, payload: bytes) -> None:
    assert activities.take("a", payload, run.state).startswith("unreadable progress: ")
    assert "a" not in activities


def test_ten_thousand_messages_in_a_second_are_two(activities: Activities, run: Run, clock: Clock) -> None:
    refused = 0
    for _ in range(10_000):
        clock.now_s += 1e-4
        refused += activities.take("a", b"garbage", run.state) != ""
    assert refused == 1 / SOONEST_S


def test_made_up_names_take_no_room(activities: Activities, run: Run) -> None:
    for number in range(10_000):
        activities.take(f"x{number}", progress(), run.state)
    assert list(activities) == []
    assert len(activities._heard_s) == 0


def test_the_time_left_follows_from_the_steps_so_far(activities: Activities, run: Run, clock: Clock) -> None:
    activities.take("a", progress(100, 1000), run.state)
    assert activities.left_s("a") is None, "one word tells no pace"
    clock.now_s += 10.0
    activities.take("a", progress(200, 1000), run.state)
    assert activities.left_s("a") == pytest.approx(80.0)
    clock.now_s += 30.0
    assert activities.left_s("a") == pytest.approx(50.0)
    clock.now_s += 100.0
    assert activities.left_s("a") == 0.0


def test_a_device_that_begins_again_has_a_new_pace(activities: Activities, run: Run, clock: Clock) -> None:
    for step in (100, 200, 50):
        activities.take("a", progress(step, 1000), run.state)
        clock.now_s += 10.0
    assert activities.left_s("a") is None
    activities.take("a", progress(51, 1000), run.state)
    assert activities.left_s("a") == pytest.approx(9490.0)


def test_who_is_done_or_gone_is_forgotten(activities: Activities, run: Run, clock: Clock) -> None:
    for device in "ab":
        activities.take(device, progress(), run.state)
    activities.changed.clear()
    activities.take("a", b"", run.state)
    assert activities.changed == {"a"}
    assert "a" not in activities
    clock.now_s += 1.0
    activities.take("a", progress(), run.state)
    run.deliver("a")
    run.feed(DeviceOffline("b", "boot"))
    activities.keep_only(run.state)
    assert list(activities) == []
    assert activities.changed == {"a", "b"}
