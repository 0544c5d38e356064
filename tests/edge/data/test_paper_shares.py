"""The paper's shares and cohorts, pinned: another numpy, machine or refactoring must not deal otherwise."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from sparsyedge.coordinator.rounds.cohort import sample_cohort
from sparsyedge.edge.data import lda_partition
from sparsyedge.edge.errors import DataError

CIFAR10_LABELS = np.repeat(np.arange(10), 5000)


@pytest.mark.parametrize(
    ("devices", "alpha", "sha256"),
    [
        (100, 0.1, "582c272b7b315ce870936e4391b362799510c80fc72bd7b2539695fd4507430a"),
        (100, 1.0, "ec8dde9a1ef032dd2143c097ccf65d13c67b09a8480b3e2a4c9ce63f828476f1"),
        (100, 1000.0, "e53e5a75adf668dbbcd5d1767471cd6272088e9a480defe9a39063d830c2090b"),
        (1000, 0.1, "33bed5f09effc3ef6cd7f7a570926352c57d1a205441dec57b7e613b9e40ba58"),
        (1000, 1.0, "d71198b39495eec1aae58e72ab6b43c2b63cf3a5877dfdf57449fab888f08e9c"),
    ],
)
def test_shares_of_cifar10_are_the_same_for_ever_and_equal_in_size(devices: int, alpha: float, sha256: str) -> None:
    shares = lda_partition(CIFAR10_LABELS, devices, alpha)
    assert {len(share) for share in shares} == {50_000 // devices}
    assert hashlib.sha256(b"".join(share.astype("<i8").tobytes() for share in shares)).hexdigest() == sha256


@pytest.mark.parametrize(
    ("seed", "sha256"),
    [
        (5378, "10522b07dcc85973e2417b20796fd25cd4d39c23ba667352b43cb657c3867086"),
        (9421, "276f774aa294b24e10dc11c15e727d237cb75cb10aedbd9f7c265df8d8744fe7"),
        (2035, "edfa84e87d4039cc887fb05a545edf466cd434f70bcb5c3078531cfc53bcf650"),
    ],
)
def test_cohorts_of_a_hundred_rounds_are_the_same_for_ever(seed: int, sha256: str) -> None:
    fleet = [f"device-{index:03d}" for index in range(100)]
    cohorts = (sample_cohort(fleet, 10, seed=seed, round_number=number) for number in range(1, 101))
    assert hashlib.sha256("\n".join(",".join(cohort) for cohort in cohorts).encode()).hexdigest() == sha256


def test_more_devices_than_samples_are_refused() -> None:
    with pytest.raises(DataError, match="11"):
        lda_partition(np.zeros(10, dtype=np.int64), 11, 1.0)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan")])
def test_an_alpha_that_is_no_distribution_is_refused(alpha: float) -> None:
    with pytest.raises(DataError, match=r"alpha = .* is out of range; allowed is any finite number above 0"):
        lda_partition(np.zeros(10, dtype=np.int64), 2, alpha)
