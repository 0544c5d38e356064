"""A device's weight in the mean: the samples it claims, within bounds.

Nobody can check how many samples a device has. So we cap each claim at what the operator declared for the device, and
at twice the round's median claim: a device that claims a billion samples counts like two devices.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from sparsyedge.coordinator.aggregation_config import AggregationConfig

__all__ = ["weigh"]

MOST_MEDIANS = 2


def weigh(claims: Mapping[str, int], config: AggregationConfig) -> dict[str, int]:
    """Weigh each device of a round by the samples that all of them claim."""
    if config.weights == "equal":
        return dict.fromkeys(claims, 1)
    # Use the low median: with two devices, a liar must not raise the bound by its own claim.
    most = MOST_MEDIANS * statistics.median_low(claims.values())
    return {device: min(claim, most, config.samples.get(device, claim)) for device, claim in claims.items()}
