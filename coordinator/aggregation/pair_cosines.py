"""The mean cosine between pairs of devices, from one running sum of unit vectors: no pair is ever compared.

For unit vectors u of n devices, |sum u|² = n + the sum of all cosines, so the mean over pairs is
(|sum u|² - n) / (n (n - 1)). Work follows the entries that devices keep, not the square of their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from sparsyedge.coordinator.aggregation.mean import stretches
from sparsyedge.coordinator.aggregation.round_entries import Listed, RoundEntries
from sparsyedge.edge.wire import native_codec as native

__all__ = ["mean_pair_cosine", "squares_of_stretches"]

Numbers = NDArray[np.float64]


def mean_pair_cosine(updates: RoundEntries, norms: Numbers) -> float | None:
    """The cosine between two devices' updates, averaged over pairs and then over trained tensors; None without pairs.

    `norms` has a row per device and a column per tensor, weights first. A device whose tensor is all zero is in none of
    that tensor's pairs. The bits do not depend on the number of workers.
    """
    base, weights = updates.base, len(updates.base.layout.weights)
    inverse = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
    squares = np.zeros(norms.shape[1])
    cut = list(stretches(updates.blocks))
    parts = squares_of_stretches if updates.workers is None else updates.workers.squares_of_unit_sums
    for part in parts(updates, cut, np.ascontiguousarray(inverse[:, :weights])):
        squares[:weights] += part
    squares[weights:] = _squares_of_others(updates, inverse[:, weights:])
    devices = np.count_nonzero(norms, axis=0)
    paired = base.trained & (devices > 1)
    if not paired.any():
        return None
    count = devices[paired]
    return float(np.mean((squares[paired] - count) / (count * (count - 1.0))))


def squares_of_stretches(updates: RoundEntries, cut: Sequence[tuple[int, int]], inverse: Numbers) -> Iterator[Numbers]:
    """What each stretch of the weights adds to |sum u|², by weight; `inverse` has one over each device's norms."""
    starts = updates.base.layout.weight_starts
    for first, last in cut:
        begin = first * updates.block
        end = begin + updates.size(first, last)
        inside = [index for index in range(inverse.shape[1]) if starts[index] < end and starts[index + 1] > begin]
        sums = np.zeros(end - begin)
        for place, (_, listed) in enumerate(updates.listed(first, last)):
            for index in inside:
                within = max(begin, int(starts[index])), min(end, int(starts[index + 1]))
                _add(sums, listed, within, begin, float(inverse[place, index]))
        found = np.zeros(inverse.shape[1])
        for index in inside:
            part = sums[max(begin, int(starts[index])) - begin : min(end, int(starts[index + 1])) - begin]
            # Not BLAS: its sums depend on the number of threads.
            found[index] = np.einsum("i,i->", part, part)
        yield found


def _add(sums: Numbers, listed: Listed, within: tuple[int, int], begin: int, weight: float) -> None:
    """Add one tensor's part of a device's entries to the sums of a stretch."""
    if not weight:
        return
    if listed.positions is None:
        part = slice(within[0] - begin, within[1] - begin)
        sums[part] += np.multiply(listed.values[part], weight, dtype=np.float64)
        return
    part = slice(*np.searchsorted(listed.positions, np.array(within, dtype=np.uint32)))
    if part.start < part.stop:
        native.add_entries(listed.positions[part], listed.values[part], first=begin, weight=weight, sums=sums)


def _squares_of_others(updates: RoundEntries, inverse: Numbers) -> Numbers:
    """|sum u|² of each tensor that is not pruned; frozen ones, which do not train, come out as zero."""
    layout, moving = updates.base.layout, np.flatnonzero(updates.moving)
    sizes = np.diff(layout.other_starts)
    owners = np.repeat(np.arange(sizes.size), sizes)[moving]
    sums = np.zeros(moving.size)
    for member, scale in zip(updates.members, inverse, strict=True):
        sums += updates.others(member) * scale[owners]
    found = np.zeros(sizes.size)
    np.add.at(found, owners, sums * sums)
    return found
