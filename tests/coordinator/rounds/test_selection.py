"""Cohorts chosen by what is on record: what each policy prefers, whose turn nobody can take, and what lies gain."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import get_args

import pytest
from fixtures.clockwork import PLAN, SECOND, Run
from hypothesis import given
from hypothesis import strategies as st

from sparsyedge.coordinator.rounds.by_data import CEILING, chances
from sparsyedge.coordinator.rounds.by_speed import TIERS
from sparsyedge.coordinator.rounds.cohort import FROM_RECORDS, POLICIES, Policy, sample_cohort
from sparsyedge.coordinator.rounds.events import ModelReady, OpenRound, Tick
from sparsyedge.coordinator.rounds.past import Past, places_by_turn
from sparsyedge.coordinator.rounds.stages import replace
from sparsyedge.edge.model.methods import group_of

FLEET = [f"pi-{index:02d}" for index in range(40)]
SIZE = 8
RECORDED = sorted(FROM_RECORDS)

anything = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True))
pasts = st.dictionaries(
    st.sampled_from(FLEET),
    st.builds(
        Past,
        last_asked=st.integers(0, 100),
        seconds=st.one_of(st.none(), st.floats(0, allow_nan=False)),
        joules_per_sample=st.one_of(st.none(), st.floats(0, allow_nan=False)),
        loss=anything,
        samples=st.integers(0, 2**62),
    ),
)


def costs(*, loss: float = 1.0) -> dict[str, Past]:
    """Devices of which each takes longer and more joules than the one before."""
    return {
        device: Past(seconds=10.0 + place, joules_per_sample=1.0 + place / 10, loss=loss, samples=100)
        for place, device in enumerate(FLEET)
    }


def cohorts(policy: Policy, rounds: range, past: Mapping[str, Past], *, fleet: list[str] = FLEET) -> list[set[str]]:
    """The cohorts of these rounds, each of which is on record for the next."""
    known, drawn = dict(past), []
    for number in rounds:
        cohort = sample_cohort(fleet, SIZE, seed=5378, round_number=number, policy=policy, past=known)
        drawn.append(set(cohort))
        for device in cohort:
            known[device] = replace(known.get(device, Past()), last_asked=number)
    return drawn


def test_every_policy_of_the_configuration_is_in_the_table() -> None:
    assert set(POLICIES) == set(get_args(Policy))
    assert set(POLICIES) >= FROM_RECORDS


@pytest.mark.parametrize("policy", RECORDED)
def test_without_a_record_lots_decide(policy: Policy) -> None:
    drawn = {sample_cohort(FLEET, SIZE, seed=seed, round_number=1, policy=policy) for seed in range(5)}
    assert len(drawn) == 5


@pytest.mark.parametrize("policy", RECORDED)
@given(past=pasts, size=st.integers(1, 45), number=st.integers(1, 1000), seed=st.integers(0, 2**53))
def test_whatever_is_on_record_a_cohort_is_whole_and_depends_on_nothing_else(
    policy: Policy, past: dict[str, Past], size: int, number: int, seed: int
) -> None:
    cohort = sample_cohort(FLEET, size, seed=seed, round_number=number, policy=policy, past=past)
    assert list(cohort) == sorted(set(cohort))
    assert len(cohort) == min(size, len(FLEET))
    again = dict(reversed(past.items()))
    assert cohort == sample_cohort(FLEET[::-1], size, seed=seed, round_number=number, policy=policy, past=again)


@pytest.mark.parametrize("policy", RECORDED)
def test_no_devices_make_no_cohort(policy: Policy) -> None:
    assert sample_cohort([], 3, seed=0, round_number=1, policy=policy) == ()


@pytest.mark.parametrize("policy", ["energy", "data"])
def test_every_device_has_its_turn_whatever_the_others_claim(policy: Policy) -> None:
    past = costs()
    # The first ten claim to cost nothing and to have a world to teach.
    past |= {device: Past(joules_per_sample=0.0, loss=1e9, samples=2**53) for device in FLEET[:10]}
    within = -(-len(FLEET) // places_by_turn(SIZE))
    drawn = cohorts(policy, range(1, 3 * within + 1), past)
    for start in range(2 * within + 1):
        assert set().union(*drawn[start : start + within]) == set(FLEET)


def test_energy_asks_the_most_frugal_devices_first() -> None:
    drawn = cohorts("energy", range(1, 11), costs())
    frugal = set(FLEET[: SIZE - places_by_turn(SIZE)])
    assert all(frugal <= cohort for cohort in drawn)


def test_a_device_without_a_meter_stands_where_the_median_does() -> None:
    past = costs()
    past["pi-39"] = Past(last_asked=5)
    past |= {device: replace(past[device], last_asked=1) for device in FLEET[:4]}
    order = POLICIES["energy"](FLEET, 1, seed=0, round_number=9, past=past)
    # One place of one is by turn, and that is somebody who never had one.
    assert 17 <= order[1:].index("pi-39") <= 21


def test_fast_asks_devices_of_one_tier_and_every_tier_as_often() -> None:
    past = costs()
    drawn = cohorts("fast", range(1, 401), past)
    places = [sorted(FLEET.index(device) for device in cohort) for cohort in drawn]
    assert all(members[-1] - members[0] < len(FLEET) // TIERS for members in places)
    counts = Counter(members[0] // (len(FLEET) // TIERS) for members in places)
    # Binomial(400, 1/5): five standard deviations are 40.
    assert set(counts) == set(range(TIERS))
    assert all(abs(count - 80) < 40 for count in counts.values())


def test_fast_counts_a_device_that_has_not_reported_among_the_slow() -> None:
    past = costs()
    del past["pi-00"]
    order = POLICIES["fast"](FLEET, SIZE, seed=0, round_number=1, past=past)
    slowest = next(cohort for cohort in cohorts("fast", range(1, 40), past) if "pi-39" in cohort and "pi-38" in cohort)
    assert "pi-00" in slowest
    assert len(order) == len(FLEET)


def test_a_fleet_too_small_for_two_tiers_is_one() -> None:
    assert sample_cohort(FLEET[:9], SIZE, seed=0, round_number=1, policy="fast", past=costs()) == sample_cohort(
        FLEET[:9], SIZE, seed=0, round_number=1
    )


def test_data_asks_those_with_large_losses_and_many_samples_more_often() -> None:
    past = costs()
    past |= {device: Past(loss=2.0, samples=100) for device in FLEET[:10]}
    past |= {device: Past(loss=0.25, samples=100) for device in FLEET[30:]}
    counts = Counter(device for cohort in cohorts("data", range(1, 201), past) for device in cohort)
    much, little = (sum(counts[device] for device in group) for group in (FLEET[:10], FLEET[30:]))
    assert much > 1.5 * little


@given(st.floats(0, 1e300), st.integers(1, 2**62))
def test_no_claim_counts_for_more_than_the_ceiling(loss: float, samples: int) -> None:
    past = costs() | {"pi-07": Past(loss=loss, samples=samples)}
    assert chances(FLEET, past)["pi-07"] <= CEILING


def test_a_liar_is_asked_no_more_than_its_ceiling_and_its_turns_allow() -> None:
    honest, liar = costs(), costs()
    liar["pi-07"] = Past(loss=1e300, samples=2**62)
    rounds = range(1, 501)
    asked = [sum("pi-07" in cohort for cohort in cohorts("data", rounds, past)) for past in (honest, liar)]
    # Honest: 500 * 8 / 40 = 100. Twice the chance in every draw, and room for five standard deviations.
    assert asked[1] <= CEILING * asked[0] + 5 * math.sqrt(200)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -1.0, 0.0])
def test_a_loss_that_is_no_loss_breaks_nothing(loss: float) -> None:
    past = costs() | {device: Past(loss=loss, samples=100) for device in FLEET[:30]}
    assert all(0 < chance <= CEILING for chance in chances(FLEET, past).values())
    assert len(sample_cohort(FLEET, SIZE, seed=1, round_number=1, policy="data", past=past)) == SIZE


@pytest.mark.parametrize("policy", RECORDED)
def test_groups_keep_their_shares(policy: Policy) -> None:
    shares = (1, 1)
    for number in range(1, 11):
        cohort = sample_cohort(FLEET, SIZE, seed=1, round_number=number, policy=policy, shares=shares, past=costs())
        assert Counter(group_of(device, shares) for device in cohort) == {0: SIZE // 2, 1: SIZE // 2}


def test_a_round_asks_by_what_was_on_record_when_the_last_one_closed() -> None:
    run = Run(replace(PLAN, policy="energy", cohort_size=2, min_updates=2, min_devices=6, rounds=3))
    devices = [f"d{number}" for number in range(6)]
    run.online(*devices)
    (opened,) = run.all(OpenRound)
    for device in opened.cohort:
        run.deliver(device)
    past = {device: Past(joules_per_sample=float(place), last_asked=1) for place, device in enumerate(devices)}
    past["d3"] = Past(joules_per_sample=9.0)
    run.feed(ModelReady(SECOND, past))
    run.feed(Tick())
    # One place by turn: only d3 never had one. The other to the most frugal.
    assert run.all(OpenRound)[-1].cohort == ("d0", "d3")
