from __future__ import annotations

import hashlib
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sparsyedge.edge.data import lda_partition
from sparsyedge.edge.errors import DataError

LABELS = np.repeat(np.arange(10), 100)
PARTITION_SHA256 = "431687c53ab26e129830b48b46ffd69f822a2497ffcc176eb1688d35dc111be7"


def one_at_a_time(labels: NDArray[np.int64], devices: int, alpha: float, seed: int) -> list[list[int]]:
    """The method's own words as a plain loop: the oracle of the vectorised partition."""
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(labels))
    queues = [[int(i) for i in shuffled if labels[i] == label] for label in np.unique(labels)]
    rows = rng.dirichlet([alpha] * len(queues), size=devices)
    partition = []
    for device in range(devices):
        row = renormalised(rows[device], queues)
        drawn = []
        for draw in rng.random(len(labels) // devices + (device < len(labels) % devices)):
            bounds = np.cumsum(row)
            chosen = next(i for i, bound in enumerate(bounds / bounds[-1]) if draw < bound)
            drawn.append(queues[chosen].pop(0))
            if not queues[chosen] and any(queues):
                row = renormalised(row, queues)
        partition.append(drawn)
    return partition


def renormalised(row: NDArray[np.float64], queues: list[list[int]]) -> NDArray[np.float64]:
    raised = np.array([chance + 1e-5 if queue else 0.0 for chance, queue in zip(row, queues, strict=True)])
    return raised / float(raised.sum())


def test_partition_is_the_same_for_ever() -> None:
    partition = lda_partition(LABELS, 7, 0.5, 1337)
    digest = hashlib.sha256(b"".join(share.astype("<i8").tobytes() for share in partition)).hexdigest()
    assert digest == PARTITION_SHA256


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=120),
    st.integers(1, 12),
    st.sampled_from([0.01, 0.1, 1.0, 1000.0]),
    st.integers(0, 2**32),
)
def test_partition_equals_drawing_one_sample_at_a_time(
    labels: list[int], devices: int, alpha: float, seed: int
) -> None:
    array = np.array(labels, dtype=np.int64)
    devices = min(devices, len(labels))
    partition = lda_partition(array, devices, alpha, seed)
    assert [share.tolist() for share in partition] == one_at_a_time(array, devices, alpha, seed)


@pytest.mark.parametrize("alpha", [0.001, 0.1, 1.0, 1000.0])
def test_every_sample_goes_to_exactly_one_device(alpha: float) -> None:
    partition = lda_partition(LABELS, 13, alpha)
    np.testing.assert_array_equal(np.sort(np.concatenate(partition)), np.arange(len(LABELS)))


def test_shares_are_equal_and_the_first_devices_take_the_remainder() -> None:
    assert [len(share) for share in lda_partition(LABELS[:23], 5, 1.0)] == [5, 5, 5, 4, 4]


def test_small_alpha_gives_few_classes_and_large_alpha_gives_all() -> None:
    few = lda_partition(LABELS, 10, 0.05)
    all_classes = lda_partition(LABELS, 10, 1000.0)
    assert np.mean([len(np.unique(LABELS[share])) for share in few[:5]]) < 5
    assert min(len(np.unique(LABELS[share])) for share in all_classes) == 10


def test_seed_changes_the_partition_and_nothing_else_does() -> None:
    first, again, other = (lda_partition(LABELS, 4, 1.0, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], other[0])


def test_labels_need_not_be_contiguous_or_signed() -> None:
    labels = np.array([3, 250, 3, 250], dtype=np.uint8)
    assert sorted(np.concatenate(lda_partition(labels, 2, 1.0)).tolist()) == [0, 1, 2, 3]


def test_hundred_devices_with_five_hundred_samples_take_well_under_a_second() -> None:
    labels = np.repeat(np.arange(100), 500)
    started = time.process_time()
    lda_partition(labels, 100, 0.1)
    assert time.process_time() - started < 1.0


@pytest.mark.parametrize(
    ("devices", "alpha", "message"),
    [
        (0, 1.0, r"devices = 0 .*1\.\.1000"),
        (1001, 1.0, r"devices = 1001 .*1\.\.1000"),
        (4, 0.0, r"alpha = 0.0 .*above 0"),
        (4, -1.0, r"alpha = -1.0 .*above 0"),
        (4, float("nan"), r"alpha = nan .*finite"),
        (4, float("inf"), r"alpha = inf .*finite"),
    ],
)
def test_arguments_out_of_range_are_refused_with_key_value_and_range(devices: int, alpha: float, message: str) -> None:
    with pytest.raises(DataError, match=message):
        lda_partition(LABELS, devices, alpha)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(DataError, match="seed = -1 "):
        lda_partition(LABELS, 2, 1.0, -1)


def test_labels_that_are_not_integers_are_refused() -> None:
    with pytest.raises(DataError, match="float64"):
        lda_partition(LABELS.astype(np.float64), 2, 1.0)
