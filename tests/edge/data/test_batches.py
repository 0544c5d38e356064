from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsyedge.edge.data import epoch_order, split_batches
from sparsyedge.edge.errors import DataError

ORDER_SHA256 = "3e70383eea49b4e62cfcc85b2e02101fc46b380bad841acf45197013848f15ef"


def test_epoch_order_is_the_same_for_ever() -> None:
    order = epoch_order(500, seed=1337, round_number=3, device_id="pi-4", epoch=0)
    assert order[:8].tolist() == [210, 184, 75, 79, 276, 391, 187, 17]
    assert hashlib.sha256(order.astype("<i8").tobytes()).hexdigest() == ORDER_SHA256


def test_epoch_order_does_not_depend_on_the_process() -> None:
    call = "epoch_order(20, seed=1, round_number=2, device_id='pi-4', epoch=0).tolist()"
    code = f"from sparsyedge.edge.data.batches import epoch_order; print({call})"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"],
            env={"PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for hash_seed in ("1", "2")
    }
    assert outputs == {str(epoch_order(20, seed=1, round_number=2, device_id="pi-4", epoch=0).tolist())}


def test_every_argument_changes_the_order() -> None:
    orders = [
        epoch_order(50, seed=1, round_number=1, device_id="a", epoch=1),
        epoch_order(50, seed=2, round_number=1, device_id="a", epoch=1),
        epoch_order(50, seed=1, round_number=2, device_id="a", epoch=1),
        epoch_order(50, seed=1, round_number=1, device_id="b", epoch=1),
        epoch_order(50, seed=1, round_number=1, device_id="a", epoch=2),
        epoch_order(50, seed=11, round_number=1, device_id="a", epoch=1),
        epoch_order(50, seed=1, round_number=11, device_id="a", epoch=1),
    ]
    assert len({tuple(order.tolist()) for order in orders}) == len(orders)


@settings(deadline=None)
@given(st.integers(0, 300), st.integers(0, 2**63), st.integers(0, 10**6), st.text(max_size=20), st.integers(0, 100))
def test_epoch_order_is_a_permutation(count: int, seed: int, round_number: int, device_id: str, epoch: int) -> None:
    order = epoch_order(count, seed=seed, round_number=round_number, device_id=device_id, epoch=epoch)
    assert order.dtype == np.int64
    np.testing.assert_array_equal(np.sort(order), np.arange(count))


def test_every_place_is_about_equally_likely_for_every_sample() -> None:
    first = [epoch_order(4, seed=0, round_number=each, device_id="d", epoch=0)[0] for each in range(2000)]
    assert np.bincount(first).min() > 400  # expected 500, standard deviation 19


@given(st.integers(0, 200), st.integers(1, 64))
def test_batches_keep_every_sample_once_and_in_order(count: int, batch_size: int) -> None:
    batches = split_batches(np.arange(count), batch_size)
    assert [sample for batch in batches for sample in batch] == list(range(count))
    assert all(len(batch) == batch_size for batch in batches[:-1])


def test_the_last_batch_may_be_partial() -> None:
    assert [len(batch) for batch in split_batches(np.arange(500), 16)] == [16] * 31 + [4]


def test_a_batch_size_below_one_is_refused() -> None:
    with pytest.raises(DataError, match=r"batch_size = 0 .*1 or more"):
        split_batches(np.arange(4), 0)
