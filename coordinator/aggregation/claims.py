"""How much a device counts for in the mean: what it claims, within what is known of it and of its peers.

A device says itself how many samples it has, and nobody can check that. So a claim counts up to what the operator
declared for the device, and up to twice the median claim of the round: whoever claims a billion counts for two.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from sparsyedge.coordinator.aggregation_config import AggregationConfig

__all__ = ["weigh"]

MOST_MEDIANS = 2


def weigh(claims: Mapping[str, int], config: AggregationConfig) -> dict[str, int]:
    """The weight of each device of a round, from the samples that all of them claim."""
    if config.weights == "equal":
        return dict.fromkeys(claims, 1)
    # Of two in the middle the lower one: a single liar among two devices must not raise the bound with its claim.
    most = MOST_MEDIANS * statistics.median_low(claims.values())
    return {device: min(claim, most, config.samples.get(device, claim)) for device, claim in claims.items()}
