"""Places of a layer's values: whatever their order, values come out of a tensor and go back where they were."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from sparsyedge.edge.training.places import Places

WEIGHTS = np.arange(100, 340, dtype=np.float32).reshape(4, 60)

ORDERS = {
    "all in order": np.arange(240),
    "blocks of a row": np.arange(240).reshape(4, 3, 20).transpose(1, 0, 2).reshape(-1),
    "scattered": np.random.default_rng(0).permutation(240)[:50],
    "stretches with gaps": np.concatenate([np.arange(90, 150), np.arange(10, 70)]),
    "one": np.array([17]),
    "none": np.array([], dtype=np.int64),
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_values_are_taken_in_order_and_put_back_where_they_were(order: NDArray[np.int64]) -> None:
    places = Places(order.astype(np.int32))
    values = places.take(WEIGHTS)
    assert places.size == order.size
    assert np.array_equal(values, WEIGHTS.reshape(-1)[order])
    dense = np.zeros(WEIGHTS.size, dtype=np.float32)
    places.put(values, dense)
    wanted = np.zeros(WEIGHTS.size, dtype=np.float32)
    wanted[order] = WEIGHTS.reshape(-1)[order]
    assert np.array_equal(dense, wanted)


def test_values_are_a_copy() -> None:
    places = Places(np.arange(240, dtype=np.int32))
    places.take(WEIGHTS)[:] = 0
    assert WEIGHTS.all()
