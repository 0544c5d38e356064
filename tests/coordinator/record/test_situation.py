"""What a run waits for, in one sentence: from the rounds' state and what devices said."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
from fixtures.clockwork import FIRST, PLAN, SECOND, Run, offer_of

from sparsyedge.coordinator.record.live import DeviceActivity
from sparsyedge.coordinator.record.situation import Heard, Situation, situation_of
from sparsyedge.coordinator.rounds.events import (
    DeviceOffline,
    DeviceUnfit,
    Interrupted,
    ModelReady,
    PauseRequested,
    StopRequested,
    Tick,
    UpdateInvalid,
    UploadComplete,
)
from sparsyedge.coordinator.rounds.stages import Plan

NOON = 1_800_014_400.0
"""12:00 UTC on the wall when the run's clock shows 0."""
HOT = "temperature is 83.0 C, allowed are 75 C"


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def trains(device: str, step: int = 120, steps: int = 310, *, phase: str = "train", number: int = 1) -> DeviceActivity:
    return DeviceActivity(
        device=device,
        round=number,
        phase=phase,
        step=step,
        steps=steps,
        loss=0.7,
        temperature_c=None,
        battery_percent=None,
        at=NOON,
    )


def look(
    run: Run,
    *activities: DeviceActivity,
    left_s: Mapping[str, float] | None = None,
    unfit: Mapping[str, str] | None = None,
) -> Situation:
    heard = Heard({activity.device: activity for activity in activities}.get, (left_s or {}).get, unfit or {})
    return situation_of(run.state, heard, now_s=run.now_s, unix_s=NOON + run.now_s)


def opened(*devices: str, plan: Plan = PLAN) -> Run:
    run = Run(replace(plan, cohort_size=len(devices), min_devices=len(devices)))
    run.online(*devices)
    assert run.open.round == 1
    return run


# ---- before a round --------------------------------------------------------------------------------------------------


def test_a_round_waits_for_devices_to_come() -> None:
    run = Run()
    assert look(run).sentence == "round 1 waits for 3 more devices: 0 of 3 are ready"
    run.online("a", "b")
    situation = look(run)
    assert situation.sentence == "round 1 waits for 1 more device: 2 of 3 are ready"
    assert (situation.stage, situation.round, situation.have, situation.need) == ("waiting", 1, 2, 3)
    assert situation.until is None


def test_a_round_says_who_is_there_but_not_fit() -> None:
    run = Run()
    run.online("a", "b")
    run.feed(DeviceUnfit("b", "boot", 0))
    assert look(run, unfit={"b": HOT}).sentence == (
        f"round 1 waits for 2 more devices: 1 of 3 are ready; b (unfit: {HOT})"
    )


def test_many_reasons_are_cut_to_a_few_and_a_number() -> None:
    run = Run(replace(PLAN, min_devices=50))
    names = [f"d{number:02}" for number in range(20)]
    run.online(*names)
    run.feed(*(DeviceUnfit(name, "boot", 0) for name in names))
    sentence = look(run, unfit=dict.fromkeys(names, "x" * 5000)).sentence
    assert sentence.endswith(" and 15 more")
    assert len(sentence) < 1000


def test_a_run_that_is_paused_says_how_it_goes_on() -> None:
    run = Run()
    run.feed(PauseRequested())
    run.online("a", "b", "c")
    situation = look(run)
    assert situation.stage == "paused"
    assert situation.sentence == (
        "round 1 waits for `sparsyedge coordinator resume`: the run is paused, 3 devices are ready"
    )


# ---- in a round ------------------------------------------------------------------------------------------------------


def test_a_round_names_those_it_waits_for_and_what_they_do() -> None:
    run = opened("pi-03", "pi-09", "pi-10")
    run.now_s = 10.0
    run.feed(DeviceOffline("pi-09", "boot"))
    run.deliver("pi-10")
    run.now_s = 70.0
    situation = look(run, trains("pi-03"), left_s={"pi-03": 240.0})
    assert situation.sentence == (
        "round 1 waits for 2 of 3 devices: pi-03 (training, step 120 of 310, about 4 min), "
        "pi-09 (offline for 60 s; not waited for after 12:01); it needs 1 more by 12:01"
    )
    assert (situation.stage, situation.have, situation.need, situation.until) == ("open", 1, 3, NOON + 100.0)


def test_a_round_with_enough_updates_says_when_it_closes() -> None:
    run = opened("a", "b", "c", plan=replace(PLAN, deadline_s=None))
    for second, device in ((600.0, "a"), (900.0, "b")):
        run.now_s = second
        run.deliver(device)
    run.feed(DeviceOffline("c", "boot"))
    run.now_s = 930.0
    situation = look(run)
    assert situation.sentence == (
        "round 1 waits for 1 of 3 devices: c (offline for 30 s; not waited for after 12:16); "
        "it closes at 12:16 at the latest"
    )
    assert situation.until == NOON + 960.0


@pytest.mark.parametrize(
    ("activity", "left_s", "doing"),
    [
        (None, None, "asked 50 s ago"),
        (trains("a", number=7), None, "asked 50 s ago"),
        (trains("a", 0, 0, phase="download"), None, "downloading"),
        (trains("a", 0, 310), None, "training, step 0 of 310"),
        (trains("a", 309, 310), 0.0, "training, step 309 of 310, about 1 s"),
        (trains("a", 1, 31_000), 90_000.0, "training, step 1 of 31000, about 25 h"),
        (trains("a", 0, 0, phase="self-check"), None, "self-check"),
    ],
)
def test_what_a_member_does_is_what_it_said_about_this_round(
    activity: DeviceActivity | None, left_s: float | None, doing: str
) -> None:
    run = opened("a", "b")
    run.now_s = 50.0
    activities = [] if activity is None else [activity]
    sentence = look(run, *activities, left_s={} if left_s is None else {"a": left_s}).sentence
    assert sentence.startswith(f"round 1 waits for 2 of 2 devices: a ({doing}), b (asked 50 s ago); ")


def test_uploads_are_told_with_their_place_in_the_queue() -> None:
    plan = replace(PLAN, max_update_bytes=10**7, upload_bytes=1_000_000)
    run = opened("a", "b", "c", "d", plan=plan)
    run.feed(offer_of("a", update_bytes=1_000_000), UploadComplete("a", "update-of-a"))
    run.feed(*(offer_of(device, update_bytes=1000) for device in ("c", "b")))
    sentence = look(run, trains("d", 5, 10)).sentence
    assert "a (its update is being checked), " in sentence
    assert "c (waits for a place to upload, number 1 of 2)" in sentence
    assert "b (waits for a place to upload, number 2 of 2)" in sentence
    run = opened("a", "b", plan=plan)
    run.feed(offer_of("a", update_bytes=2_500_000))
    assert "a (uploading 2.50 MB)" in look(run).sentence


def test_who_will_not_answer_is_told_with_the_reason() -> None:
    run = opened("a", "b", "c")
    run.feed(DeviceUnfit("a", "boot", 1))
    run.feed(offer_of("b"), UploadComplete("b", "update-of-b"), UpdateInvalid("b", "update-of-b", "bad"))
    sentence = look(run, unfit={"a": HOT}).sentence
    assert f"a (unfit: {HOT}; not waited for after 12:01)" in sentence
    assert "b (its update was refused; not waited for after 12:01)" in sentence


def test_a_large_cohort_is_a_short_sentence_that_names_the_absent_first() -> None:
    names = [f"d{number:04}" for number in range(1000)]
    run = opened(*names)
    run.feed(DeviceOffline("d0998", "boot"), DeviceOffline("d0999", "boot"))
    sentence = look(run).sentence
    assert sentence.startswith("round 1 waits for 1000 of 1000 devices: d0998 (offline for 0 s; ")
    assert "d0000 (asked 0 s ago), d0001 (asked 0 s ago), d0002 (asked 0 s ago) and 995 more; " in sentence
    assert len(sentence) < 400


def test_an_extended_round_says_so_and_what_comes_after_it() -> None:
    run = opened("a", "b")
    run.now_s = 101.0
    run.feed(Tick())
    assert look(run).sentence.endswith("; it needs 2 more by 12:03, after 1 extension")
    run.feed(PauseRequested())
    assert look(run).sentence.endswith("after 1 extension; then the run pauses")
    run.feed(StopRequested())
    assert look(run).sentence.endswith("after 1 extension; then the run stops")


def test_a_deadline_beyond_a_day_has_its_date() -> None:
    run = opened("a", "b", plan=replace(PLAN, deadline_s=3 * 86_400.0))
    assert "by 18 Jan 12:00" in look(run).sentence


def test_the_subject_changes_with_who_is_absent_not_with_figures() -> None:
    run = opened("a", "b", "c")
    first = look(run, trains("a", 1)).subject
    run.now_s = 30.0
    assert look(run, trains("a", 99)).subject == first
    run.feed(DeviceOffline("b", "boot"))
    assert look(run, trains("a", 99)).subject != first


# ---- after a round ---------------------------------------------------------------------------------------------------


def test_a_round_that_closes_says_what_of() -> None:
    run = opened("a", "b", "c")
    for device in "abc":
        run.deliver(device)
    situation = look(run)
    assert situation.stage == "closing"
    assert situation.sentence == "round 1 is being closed: 3 updates become the next model"
    run.feed(Interrupted())
    assert look(run).sentence == "the run is over after 1 round"
    assert look(run).stage == "over"


def test_later_rounds_need_fewer_devices() -> None:
    run = opened("a", "b", "c")
    for device in "abc":
        run.deliver(device, base=FIRST)
    run.feed(DeviceOffline("b", "boot"), DeviceOffline("c", "boot"))
    run.feed(ModelReady(SECOND))
    assert look(run).sentence == "round 2 waits for 1 more device: 1 of 2 are ready"


def test_a_run_that_failed_says_why() -> None:
    run = opened("a", "b", "c")
    for _ in range(4):
        run.now_s += 101.0
        run.feed(Tick())
    situation = look(run)
    assert situation.stage == "over"
    assert situation.sentence.startswith("the run has failed: round 1 of run r1 has 0 of 2 updates")
