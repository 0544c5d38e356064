"""Cohorts whose classes come out even: how even, how fair, and what no device can do to them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray

from sparsyedge.coordinator.rounds.balanced import balanced_cohort
from sparsyedge.coordinator.rounds.cohort import sample_cohort

CLASSES = 10
SIZE = 10


def skewed_fleet(devices: int) -> dict[str, bytes]:
    """Devices with few classes each."""
    rng = np.random.default_rng(0)
    mixes = rng.dirichlet([0.1] * CLASSES, devices)
    return {f"device-{number:05d}": bytes(np.ceil(100 * mix).astype(int).tolist()) for number, mix in enumerate(mixes)}


FLEET = skewed_fleet(100)


def mix_of(cohort: tuple[str, ...], fleet: dict[str, bytes]) -> NDArray[np.float64]:
    rows = np.array([list(fleet[device]) for device in cohort], dtype=float)
    total = (rows / rows.sum(axis=1, keepdims=True)).sum(axis=0)
    return np.asarray(total / total.sum(), dtype=np.float64)


def cohorts(fleet: dict[str, bytes], rounds: range, *, size: int = SIZE, seed: int = 5378) -> list[tuple[str, ...]]:
    return [
        sample_cohort(fleet, size, seed=seed, round_number=number, policy="balanced", classes=fleet)
        for number in rounds
    ]


def test_classes_are_several_times_as_even_as_by_lot() -> None:
    everyone = mix_of(tuple(FLEET), FLEET)
    lots = [sample_cohort(FLEET, SIZE, seed=5378, round_number=number) for number in range(1, 41)]
    apart = {
        name: np.mean([np.abs(mix_of(each, FLEET) - everyone).sum() / 2 for each in drawn])
        for name, drawn in (("lot", lots), ("balanced", cohorts(FLEET, range(1, 41))))
    }
    assert apart["balanced"] < apart["lot"] / 4


def test_every_device_has_one_turn_in_every_cycle() -> None:
    drawn = cohorts(FLEET, range(1, 31))
    assert {len(cohort) for cohort in drawn} == {SIZE}
    for first in (0, 10, 20):
        assert Counter(device for cohort in drawn[first : first + 10] for device in cohort) == dict.fromkeys(FLEET, 1)
    assert len(set(drawn)) == 30


@pytest.mark.parametrize("size", [7, 30, 60, 99])
def test_a_fleet_that_does_not_divide_evenly_fills_up_by_lot(size: int) -> None:
    rounds = -(-100 // size)
    drawn = cohorts(FLEET, range(1, 1 + 10 * rounds), size=size)
    assert {len(cohort) for cohort in drawn} == {size}
    turns = Counter(device for cohort in drawn for device in cohort)
    assert min(turns[device] for device in FLEET) >= 10


def test_a_large_fleet_is_dealt_out_in_blocks() -> None:
    fleet = skewed_fleet(2600)
    turns = Counter(device for cohort in cohorts(fleet, range(1, 27), size=100) for device in cohort)
    assert turns == dict.fromkeys(fleet, 1)


def test_no_device_trains_more_often_for_what_it_says() -> None:
    greedy = FLEET | {"device-00000": bytes([0] * 9 + [100]), "device-00001": bytes([255] * CLASSES)}
    turns = Counter(device for cohort in cohorts(greedy, range(1, 101)) for device in cohort)
    assert turns["device-00000"] == turns["device-00001"] == 10


def test_the_chance_does_not_depend_on_classes_where_the_fleet_changes_all_the_time() -> None:
    """Each round has another fleet, so that no cycle is ever completed."""
    rng = np.random.default_rng(1)
    names = sorted(FLEET)
    rare = "device-99999"
    turns = Counter[str]()
    for number in range(1, 601):
        present = {names[place]: FLEET[names[place]] for place in rng.choice(100, 59, replace=False)}
        present[rare] = bytes([0] * CLASSES + [100])
        turns.update(sample_cohort(present, 10, seed=3, round_number=number, policy="balanced", classes=present))
    # One round in six: 100 of 600, with a standard deviation of 9.
    assert 60 < turns[rare] < 140


def test_it_depends_on_seed_round_and_fleet_alone() -> None:
    once, again = cohorts(FLEET, range(1, 6)), cohorts(dict(reversed(FLEET.items())), range(1, 6))
    assert once == again
    assert once != cohorts(FLEET, range(1, 6), seed=1)


def test_devices_that_say_nothing_have_their_turns_too() -> None:
    half = {device: told for device, told in FLEET.items() if int(device[-1]) % 2}
    drawn = [
        sample_cohort(FLEET, SIZE, seed=1, round_number=number, policy="balanced", classes=half)
        for number in range(1, 11)
    ]
    assert Counter(device for cohort in drawn for device in cohort) == dict.fromkeys(FLEET, 1)
    assert len(sample_cohort(FLEET, SIZE, seed=1, round_number=1, policy="balanced")) == SIZE


def test_a_fleet_no_larger_than_a_cohort_comes_whole() -> None:
    assert balanced_cohort(["b", "a"], 10, seed=1, round_number=4, classes={}) == ["a", "b"]
    assert sample_cohort([], 10, seed=1, round_number=1, policy="balanced") == ()
