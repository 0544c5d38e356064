"""Who takes part in a round."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sparsyedge.coordinator.rounds.cohort import sample_cohort

FLEET = [f"pi-{index:02d}" for index in range(20)]


def test_golden_cohorts() -> None:
    drawn = [sample_cohort(FLEET, 4, seed=1337, round_number=number) for number in (1, 2, 3)]
    assert drawn == [
        ("pi-02", "pi-05", "pi-09", "pi-12"),
        ("pi-06", "pi-12", "pi-16", "pi-17"),
        ("pi-04", "pi-08", "pi-17", "pi-19"),
    ]


def test_a_fleet_smaller_than_the_cohort_takes_part_as_a_whole() -> None:
    assert sample_cohort(["b", "a"], 10, seed=1, round_number=1) == ("a", "b")


def test_the_seed_decides() -> None:
    cohorts = {sample_cohort(FLEET, 4, seed=seed, round_number=1) for seed in range(10)}
    assert len(cohorts) > 1


def test_every_device_gets_its_turn() -> None:
    rounds = 400
    counts = dict.fromkeys(FLEET, 0)
    for number in range(rounds):
        for device in sample_cohort(FLEET, 5, seed=5378, round_number=number):
            counts[device] += 1
    # Binomial(400, 1/4): five standard deviations are 43.
    assert all(abs(count - 100) < 43 for count in counts.values())


@given(st.permutations(FLEET), st.integers(0, 30), st.integers(0, 2**32), st.integers(1, 1000))
def test_the_order_of_arrival_does_not_matter(devices: list[str], size: int, seed: int, number: int) -> None:
    cohort = sample_cohort(devices, size, seed=seed, round_number=number)
    assert cohort == sample_cohort(FLEET, size, seed=seed, round_number=number)
    assert len(cohort) == min(size, len(FLEET))
    assert list(cohort) == sorted(set(cohort))


@given(st.sampled_from(FLEET), st.integers(1, 1000))
def test_a_device_that_leaves_changes_at_most_one_place(gone: str, number: int) -> None:
    before = set(sample_cohort(FLEET, 6, seed=1, round_number=number))
    after = set(sample_cohort(set(FLEET) - {gone}, 6, seed=1, round_number=number))
    assert before - after <= {gone}


def test_groups_get_their_shares_of_every_cohort() -> None:
    fleet = [f"device-{index:03d}" for index in range(100)]
    cohorts = [sample_cohort(fleet, 10, seed=5378, round_number=n, shares=(40, 30, 30)) for n in range(1, 21)]
    for cohort in cohorts:
        numbers = [int(device[-3:]) for device in cohort]
        assert (sum(n < 40 for n in numbers), sum(n >= 70 for n in numbers), len(numbers)) == (4, 3, 10)
    assert len(set(cohorts)) == 20


def test_places_that_a_group_cannot_fill_go_to_others() -> None:
    fleet = [f"device-{index}" for index in range(40, 60)]
    assert len(sample_cohort(fleet, 10, seed=1, round_number=1, shares=(40, 30, 30))) == 10
