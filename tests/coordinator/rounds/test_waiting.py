"""Whom a round with enough updates still waits for, and how one member can abuse that: rounds with a fake clock."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.clockwork import PLAN, SECOND, Run, offer_of
from fixtures.reports import plain_report

from sparsyedge.coordinator.record.store import AcceptedUpdate, ClosedRound, Store
from sparsyedge.coordinator.rounds.deadlines import FIRST_S, LEAST_S, PROBATION_ROUNDS
from sparsyedge.coordinator.rounds.events import (
    ChunkReceived,
    CloseRound,
    DeviceOffline,
    DeviceUnfit,
    ModelReady,
    OfferReceived,
    Quarantine,
    Released,
    ReplaceMember,
    Tick,
    UpdateInvalid,
    UpdateVerified,
    UploadComplete,
)
from sparsyedge.coordinator.rounds.grants import UPLOAD_IDLE_S
from sparsyedge.coordinator.rounds.stages import Closing
from sparsyedge.coordinator.rounds.table import Table

HONEST = tuple(f"d{number}" for number in range(1, 10))
HOSTILE = "x5"
ROUNDS = 20
TEN = replace(PLAN, rounds=ROUNDS, cohort_size=10, min_updates=9, min_devices=10, deadline_s=None)

Attack = Callable[[Run, int], None]


def offer(run: Run, device: str, update: str | None = None) -> OfferReceived:
    return offer_of(device, round_number=run.open.round, base=run.open.model, update=update)


def deliver(run: Run, device: str) -> None:
    run.deliver(device, round_number=run.open.round, base=run.open.model)


# ---- what one member of ten can do in twenty rounds ------------------------------------------------------------------


def answer(run: Run, moment: int) -> None:
    if moment == 50:
        deliver(run, HOSTILE)


def say_nothing(run: Run, moment: int) -> None:
    """Keep the others waiting."""


def say_nothing_after_five_rounds(run: Run, moment: int) -> None:
    if run.open.round <= 5:
        answer(run, moment)


def say_nothing_in_every_other_round(run: Run, moment: int) -> None:
    if run.open.round % 2:
        answer(run, moment)


def leave_in_mid_round(run: Run, moment: int) -> None:
    if moment == 55:
        run.feed(DeviceOffline(HOSTILE, "boot"))


def hold_a_place(run: Run, moment: int) -> None:
    run.feed(offer(run, HOSTILE, update=f"{moment:064x}"))


def hold_a_place_and_trickle(run: Run, moment: int) -> None:
    run.feed(offer(run, HOSTILE), ChunkReceived(HOSTILE))


def send_nan(run: Run, moment: int) -> None:
    if moment % 10 == 5:
        made = offer(run, HOSTILE)
        update = made.offer.update.sha256
        run.feed(made, UploadComplete(HOSTILE, update), UpdateInvalid(HOSTILE, update, "it holds NaN"))


def send_nan_then_hold_a_place(run: Run, moment: int) -> None:
    (send_nan if moment < 10 else hold_a_place)(run, moment)


def play(attack: Attack, *, unit_s: float) -> Run:
    """Play a run of ten devices: nine answer after 40 to 56 units, and the attacker acts once per unit."""
    run = Run(TEN)
    run.online(*HONEST, HOSTILE)
    for _ in range(ROUNDS):
        opened_s, moment = run.now_s, 0
        while not isinstance(run.state.stage, Closing):
            moment += 1
            run.now_s = opened_s + moment * unit_s
            if HOSTILE in run.open.cohort:
                attack(run, moment)
            if 40 <= moment <= 56 and moment % 2 == 0:
                deliver(run, HONEST[(moment - 40) // 2])
            run.feed(Tick())
        run.online(HOSTILE)
        run.feed(ModelReady(SECOND))
    return run


@pytest.mark.parametrize("unit_s", [1.0, 100.0], ids=["minutes", "hours"])
@pytest.mark.parametrize(
    "attack",
    [
        say_nothing,
        say_nothing_after_five_rounds,
        say_nothing_in_every_other_round,
        leave_in_mid_round,
        hold_a_place,
        hold_a_place_and_trickle,
        send_nan,
        send_nan_then_hold_a_place,
    ],
)
def test_one_member_of_ten_costs_no_honest_update_and_at_most_half_the_time_again(
    attack: Attack, unit_s: float
) -> None:
    clean, attacked = play(answer, unit_s=unit_s), play(attack, unit_s=unit_s)
    closed = attacked.all(CloseRound)
    assert len(closed) == ROUNDS
    assert all(set(HONEST) <= set(round_.accepted) for round_ in closed)
    assert attacked.now_s <= 1.5 * clean.now_s


# ---- who is on probation ---------------------------------------------------------------------------------------------


def begun(**changes: object) -> Run:
    """A run of four devices that have all answered its first round after 100 s."""
    run = Run(replace(TEN, cohort_size=4, min_devices=4, **{"min_updates": 3, **changes}))  # type: ignore[arg-type]
    run.online("d1", "d2", "d3", "d4")
    complete(run)
    return run


def complete(run: Run, *, without: str = "", seconds: float = 100.0) -> float:
    """Complete a round in which all but `without` answer after `seconds`; returns how long it took."""
    opened_s = run.now_s
    run.now_s += seconds
    for device in run.open.cohort:
        if device != without:
            deliver(run, device)
    while not isinstance(run.state.stage, Closing):
        run.now_s += 1.0
        run.feed(Tick())
    took_s = run.now_s - opened_s
    run.feed(ModelReady(SECOND))
    return took_s


def test_a_member_that_missed_a_round_is_waited_for_a_quarter_longer_than_the_others_took() -> None:
    run = begun()
    assert [complete(run, without="d4") for _ in range(3)] == [200.0, 125.0, 125.0]


def test_an_update_does_not_end_a_probation_and_ten_rounds_do() -> None:
    run = begun()
    assert complete(run, without="d4") == 200.0
    complete(run)
    assert complete(run, without="d4") == 125.0
    for _ in range(PROBATION_ROUNDS):
        assert complete(run) == 100.0
    assert complete(run, without="d4") == 200.0


def test_a_slow_device_that_missed_a_round_still_has_the_time_that_it_usually_takes() -> None:
    run = begun()
    for number in (2, 3):
        opened_s = run.now_s
        run.now_s += 100.0
        for device in ("d1", "d2", "d3"):
            deliver(run, device)
        run.now_s = opened_s + 180.0
        if number == 2:
            deliver(run, "d4")
            run.feed(ModelReady(SECOND))
    run.now_s = opened_s + 2 * 180.0
    run.feed(Tick(), ModelReady(SECOND))
    assert run.state.missed == {"d4": 3}
    assert complete(run, without="d4") == 1.25 * 180.0


def test_a_deadline_that_the_user_set_is_not_for_a_member_on_probation() -> None:
    run = begun(deadline_s=1000.0)
    assert [complete(run, without="d4") for _ in range(2)] == [1000.0, 125.0]


def test_a_device_without_a_past_is_waited_for_five_times_as_long_as_the_others_took() -> None:
    run = Run(replace(TEN, cohort_size=4, min_devices=4, min_updates=3))
    run.online("d1", "d2", "d3", "d4")
    assert complete(run, without="d4", seconds=100.0) == 500.0
    run = Run(replace(TEN, cohort_size=4, min_devices=4, min_updates=3))
    run.online("d1", "d2", "d3", "d4")
    assert complete(run, without="d4", seconds=1.0) == LEAST_S


def test_a_few_fast_devices_do_not_set_the_pace() -> None:
    run = begun(min_updates=2)
    run.state = replace(run.state, missed=Table({"d3": 1, "d4": 1}), times=Table())
    opened_s = run.now_s
    run.now_s += 1.0
    deliver(run, "d1")
    deliver(run, "d2")
    run.now_s = opened_s + 190.0
    assert run.feed(Tick()) == []
    deliver(run, "d3")
    deliver(run, "d4")
    assert run.all(CloseRound)[-1] == CloseRound(2, ("d1", "d2", "d3", "d4"))


def test_devices_that_take_turns_are_not_measured_by_each_other() -> None:
    run = begun(takes_turns=True)
    assert [complete(run, without="d4") for _ in range(2)] == [FIRST_S, FIRST_S]


def test_devices_that_take_turns_all_have_the_same_time_and_none_loses_its_place_by_waiting() -> None:
    run = Run(replace(TEN, cohort_size=3, min_devices=4, min_updates=3, takes_turns=True, deadline_s=None))
    run.online("d1", "d2", "d3", "d4", "d5")
    for _ in range(2):
        complete(run)
    opened = run.open
    # Some have answered before, within seconds, and one may be new.
    assert set(opened.deadlines.values()) == {opened.opened_s + FIRST_S}
    run.now_s += 0.99 * FIRST_S
    run.feed(Tick())
    assert run.all(ReplaceMember) == []


def test_a_device_that_says_it_cannot_train_is_not_on_probation() -> None:
    run = begun()
    run.feed(DeviceUnfit("d4", "boot"))
    assert complete(run, without="d4") == 100.0
    assert run.state.missed == {}


def test_a_device_that_is_released_is_as_good_as_new() -> None:
    run = begun()
    for _ in range(3):
        complete(run, without="d4")
    assert run.all(Quarantine)[-1].device == "d4"
    run.feed(Released("d4"))
    complete(run)
    assert complete(run, without="d4") == 500.0


# ---- updates that are on their way -----------------------------------------------------------------------------------


def over_selected() -> Run:
    run = Run(replace(TEN, cohort_size=2, min_updates=2, min_devices=4, over_selection=1.0))
    run.online("d1", "d2", "d3", "d4")
    run.now_s = 100.0
    return run


def test_a_full_round_takes_what_is_being_uploaded() -> None:
    run = over_selected()
    late = offer(run, "d3")
    run.feed(late)
    deliver(run, "d1")
    deliver(run, "d2")
    assert run.all(CloseRound) == []
    commands = run.feed(UploadComplete("d3", late.offer.update.sha256), UpdateVerified("d3", late.offer.update.sha256))
    assert commands[-1] == CloseRound(1, ("d1", "d2", "d3"))


def test_an_upload_that_stops_holds_a_full_round_up_for_half_a_minute_at_most() -> None:
    run = over_selected()
    run.now_s = 1000.0
    run.feed(offer(run, "d3"))
    deliver(run, "d1")
    deliver(run, "d2")
    run.now_s += UPLOAD_IDLE_S - 1
    assert run.feed(Tick()) == []
    run.now_s += 1
    assert run.feed(Tick()) == [CloseRound(1, ("d1", "d2"))]


def test_uploads_hold_a_full_round_up_for_a_quarter_of_its_time_at_most() -> None:
    run = over_selected()
    deliver(run, "d1")
    run.feed(offer(run, "d3"))
    deliver(run, "d2")
    while not run.all(CloseRound):
        run.now_s += 1.0
        run.feed(ChunkReceived("d3"))
    assert run.now_s == 125.0


def test_an_upload_that_is_under_way_at_a_learned_deadline_may_finish() -> None:
    run = begun()
    for device in ("d1", "d2", "d3"):
        deliver(run, device)
    run.now_s = run.open.deadlines["d4"] - 1
    late = offer(run, "d4")
    run.feed(late)
    run.now_s += 10
    assert run.feed(Tick()) == []
    update = late.offer.update.sha256
    commands = run.feed(UploadComplete("d4", update), UpdateVerified("d4", update))
    assert commands[-1] == CloseRound(2, ("d1", "d2", "d3", "d4"))


def test_a_member_that_holds_a_place_to_upload_and_sends_nothing_is_replaced() -> None:
    run = Run(replace(TEN, cohort_size=3, min_updates=3, min_devices=4))
    run.online("d1", "d2", "d3", "d4")
    silent, *others = run.open.cohort
    run.now_s = 100.0
    for device in others:
        deliver(run, device)
    run.feed(offer(run, silent))
    run.now_s = run.open.deadlines[silent] + UPLOAD_IDLE_S
    run.feed(Tick())
    assert silent not in run.open.cohort
    assert silent not in run.open.granted


# ---- after a restart -------------------------------------------------------------------------------------------------


def test_who_missed_a_round_is_known_after_a_restart(tmp_path: Path) -> None:
    with closing(Store.create(tmp_path, name="r1", fleet="lab", rounds=99, dense_bytes=1, config="{}")) as store:
        for number, accepted in enumerate([("d1",), ("d1", "d2"), *[("d1", "d2", "d3")] * 9], start=1):
            store.open_round(number, base="", base_nonzeros=1, learning_rate=0.1, cohort=("d1", "d2", "d3"))
            for device in accepted:
                update = AcceptedUpdate(round=number, device=device, samples=1, sha256="", bytes=1, nonzeros=1)
                store.accept_update(update, plain_report("r1", number))
            store.close_round(
                ClosedRound(round=number, model_id=SECOND, seconds=1.0, global_sparsity=0.5, evaluation=None)
            )
        store.open_round(12, base="", base_nonzeros=1, learning_rate=0.1, cohort=("d1", "d2", "d3"))
        # Round 1 is too long ago, round 12 is still open, and nobody misses a round that got enough updates.
        assert store.missed(cohort_size=3) == {"d3": 2}
        assert store.missed(cohort_size=2) == {}
