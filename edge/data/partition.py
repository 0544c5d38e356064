"""The Latent Dirichlet Allocation partition: equal shares for all devices, each with its own class distribution.

Small alpha gives each device few classes; large alpha gives all devices the same mix. Devices draw one after the other
and without replacement, so late ones get the leftovers: at alpha = 0.1 their mix no longer matches their distribution.
The method's experiments were partitioned this way, so we keep it. A regression has no classes to mix: its shares are
equal and random.
"""

from __future__ import annotations

import logging
import math
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.data.dataset import Samples
from sparsyedge.edge.errors import DataError

__all__ = ["lda_partition", "share_out"]

log = logging.getLogger(__name__)

# Added to every class that still has samples: a device whose classes are all gone can then draw from the others.
_FLOOR = 1e-5


def share_out(samples: Samples, devices: int, alpha: float, seed: int = 1337) -> list[NDArray[np.int64]]:
    """Each device's sample indices; `alpha` says how much their classes differ, and means nothing in a regression."""
    if samples.task == "classes":
        return lda_partition(cast("NDArray[np.int64]", samples.y), devices, alpha, seed)
    _check_arguments(len(samples), devices, alpha, seed)
    log.info("a regression has no classes: its %d shares are equal and random, whatever alpha is", devices)
    order = np.random.default_rng(seed).permutation(len(samples)).astype(np.int64, copy=False)
    return np.array_split(order, devices)


def lda_partition(
    labels: NDArray[np.integer[Any]], devices: int, alpha: float, seed: int = 1337
) -> list[NDArray[np.int64]]:
    """Each device's sample indices, in the order it drew them.

    Every sample goes to exactly one device. Each device gets len(labels) // devices of them, and the first
    len(labels) % devices get one more.
    """
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(f"labels are {labels.dtype} of shape {labels.shape}; expected integers of shape (samples,)")
    _check_arguments(len(labels), devices, alpha, seed)
    rng = np.random.default_rng(seed)
    queues = _shuffled_queues(labels, rng)
    distributions = rng.dirichlet([alpha] * len(queues), size=devices)
    share, remainder = divmod(len(labels), devices)
    left = np.array([len(queue) for queue in queues])
    partition = []
    for device, distribution in enumerate(distributions):
        draws = rng.random(share + (device < remainder))
        classes = _draw_classes(draws, distribution, left)
        partition.append(_pop(queues, classes, left))
    return partition


def _check_arguments(samples: int, devices: int, alpha: float, seed: int) -> None:
    if not 1 <= devices <= samples:
        raise DataError(
            f"devices = {devices} is out of range; allowed is 1..{samples}, the number of samples to share out"
        )
    if not (math.isfinite(alpha) and alpha > 0):
        raise DataError(f"alpha = {alpha} is out of range; allowed is any finite number above 0, for example 1.0")
    if seed < 0:
        raise DataError(f"seed = {seed} is out of range; allowed is 0 or more")


def _shuffled_queues(labels: NDArray[np.integer[Any]], rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """For each class present, in label order, the indices of its samples in random order."""
    shuffled = rng.permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    _, starts = np.unique(labels[by_label], return_index=True)
    return np.split(by_label.astype(np.int64, copy=False), starts[1:])


def _draw_classes(
    draws: NDArray[np.float64], distribution: NDArray[np.float64], left: NDArray[np.int64]
) -> NDArray[np.int64]:
    """One class per draw (uniform in 0..1), as if taken one at a time from the `left` samples of each class.

    The distribution changes only when a class runs out. So we map all remaining draws at once, keep those up to the
    one that empties a class, and map the rest again.
    """
    left = left.copy()
    classes = np.empty(len(draws), dtype=np.int64)
    distribution = _exclude_empty(distribution, left)
    done = 0
    while done < len(draws):
        bounds = np.cumsum(distribution)
        # Division makes the last bound exactly 1; side="right" never picks a class of probability zero.
        drawn = np.searchsorted(bounds / bounds[-1], draws[done:], side="right")
        counts = np.bincount(drawn, minlength=len(left))
        emptied = np.flatnonzero((counts >= left) & (left > 0))
        kept = min((int(np.flatnonzero(drawn == each)[left[each] - 1]) + 1 for each in emptied), default=len(drawn))
        classes[done : done + kept] = drawn[:kept]
        left -= np.bincount(drawn[:kept], minlength=len(left))
        done += kept
        if done < len(draws):
            distribution = _exclude_empty(distribution, left)
    return classes


def _exclude_empty(distribution: NDArray[np.float64], left: NDArray[np.int64]) -> NDArray[np.float64]:
    """The distribution over the classes with samples left, each raised by the floor; sums to 1."""
    raised: NDArray[np.float64] = np.where(left > 0, distribution + _FLOOR, 0.0)
    return raised / float(raised.sum())


def _pop(queues: list[NDArray[np.int64]], classes: NDArray[np.int64], left: NDArray[np.int64]) -> NDArray[np.int64]:
    """The next sample of each requested class; lowers `left`, which also tracks each queue's position."""
    samples = np.empty(len(classes), dtype=np.int64)
    for each in np.unique(classes):
        places = np.flatnonzero(classes == each)
        start = len(queues[each]) - left[each]
        samples[places] = queues[each][start : start + len(places)]
        left[each] -= len(places)
    return samples
