"""How many neighbours a device needs."""

from __future__ import annotations

import pytest

from sparsyedge.coordinator.privacy.degree import degree_and_threshold
from sparsyedge.edge.errors import ConfigError


@pytest.mark.parametrize("devices", [100, 1000, 10_000])
@pytest.mark.parametrize(("colluding", "lost"), [(0.0, 0.05), (0.1, 0.05), (0.1, 0.3)])
def test_a_large_cohort_needs_few_neighbours(devices: int, colluding: float, lost: float) -> None:
    degree, threshold = degree_and_threshold(devices, colluding=colluding, lost=lost)
    assert degree % 2 == 0
    assert degree // 2 < threshold <= degree < devices - 1
    # More than can be expected to collude, less than can be expected to be left.
    assert colluding * degree < threshold < (1 - lost) * degree + 1


def test_degrees_grow_with_the_logarithm_of_the_cohort() -> None:
    hundred, thousands = (degree_and_threshold(devices, colluding=0.1, lost=0.05)[0] for devices in (100, 10_000))
    assert thousands < 2 * hundred


@pytest.mark.parametrize(("devices", "threshold"), [(4, 3), (8, 6), (20, 18)])
def test_in_a_small_cohort_everybody_is_a_neighbour(devices: int, threshold: int) -> None:
    assert degree_and_threshold(devices, colluding=0.0, lost=0.05 if devices > 4 else 0.0) == (
        devices - 1 + (devices - 1) % 2,
        threshold,
    )


def test_more_losses_than_a_sum_can_bear_are_refused() -> None:
    with pytest.raises(ConfigError, match="more than half"):
        degree_and_threshold(100, colluding=0.2, lost=0.3)
    with pytest.raises(ConfigError, match="4 devices are too few"):
        degree_and_threshold(4, colluding=0.1, lost=0.3)
