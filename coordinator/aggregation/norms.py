"""Limits how far an update may move the model: at most a given multiple of the round's median update.

An update pulls on the mean with its weight times the norm of its change. We compare all updates when the round closes,
so their order of arrival does not matter. If one pulls too hard, we clip it: scale its change down to the limit. Each
tensor has its own bound, since a change that a large layer would not notice can ruin a small one. We neither measure
nor touch entries that the device pruned. They stay zero, so clipping never breaks the non-zero budget, not even in
round 1 with its dense base. BatchNorm's running statistics are bounded too; a variance scaled towards the base stays a
valid variance.

Pruning also pulls, towards zero: an update that keeps nothing of what its peers keep would take its share off every
weight. Scaling the update cannot fix that, so we scale its weight instead, by how much of the model it prunes compared
with the median update.

With fewer than three updates there is nothing to compare, so we clip nothing.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["NEARLY", "clip_scales", "share_left", "trust_of"]

Numbers = NDArray[np.float64]

MIN_PEERS = 3
NEGLIGIBLE = 0.001
"""Lower bound on the median, as a share of the tensor's norm, for rounds in which hardly anyone moves the model."""
LITTLE_PRUNED = 0.05
"""The same for pruning; larger, because devices with their own targets prune more."""
NEARLY = 1e-6
"""Far more than the error of a norm that is accurate to ten digits."""


def clip_scales(changes: Numbers, weights: Numbers, *, size: Numbers, factor: float) -> Numbers:
    """Return the scale for each change (devices, tensors) that pulls over `factor` times as hard as the median, else 1.

    `size` has the norm of each tensor of the model.
    """
    return np.stack(
        [
            _beyond(changes[:, tensor], weights, factor=factor, least=NEGLIGIBLE * float(size[tensor]))
            for tensor in range(changes.shape[1])
        ],
        axis=1,
    )


def trust_of(pruned: Numbers, weights: Numbers, *, size: float, factor: float) -> Numbers:
    """Return the share of its weight that each device keeps: less than 1 if it prunes over `factor` times the median.

    `size` is the norm of all prunable weights of the model.
    """
    return _beyond(pruned, weights, factor=factor, least=LITTLE_PRUNED * size)


def _beyond(norms: Numbers, weights: Numbers, *, factor: float, least: float) -> Numbers:
    """Return, for each device over the bound, the scale that brings weight times norm down to it; 1 for the others."""
    scales = np.ones(norms.size)
    if norms.size < MIN_PEERS:
        return scales
    pulls = weights * norms
    bound = factor * max(float(np.median(pulls)), least * float(np.median(weights)))
    over = pulls > bound
    scales[over] = bound / pulls[over]
    return scales


def share_left(norms: Numbers, scales: Numbers) -> float:
    """Return the share of an update's total change that the scales leave."""
    whole = math.hypot(*norms.tolist())
    return math.hypot(*(norms * scales).tolist()) / whole if whole else 1.0
