"""The masks that devices vote for: every non-zero entry of an update counts as much as the update does."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from sparsyedge.coordinator.aggregation.round_base import RoundBase
from sparsyedge.coordinator.aggregation.round_entries import RoundEntries
from sparsyedge.edge.model.allocation import erk_counts, prune_model
from sparsyedge.edge.model.prune import removed_count
from sparsyedge.edge.model.regrowth import regrow_counts
from sparsyedge.edge.tensors import FloatArray
from sparsyedge.edge.wire.flat_frame import FlatUpdate, flatten

__all__ = ["regrown", "start_of_votes"]

Votes = NDArray[np.float64]


def start_of_votes(updates: RoundEntries) -> FlatUpdate:
    """The model that the round began with, of whose weights only those with the most votes are left.

    There are at most as many as the target leaves. Of equal votes the larger weight wins, then the first in the order
    of names and memory. Values that devices sent do not matter, neither do their other tensors: nobody has trained.
    """
    base, method = updates.base, updates.base.manifest.method
    layout, weights = base.layout, base.flat.weights
    votes = _count(updates)
    if method.allocation == "erk":
        counts = erk_counts({name: layout.shapes[name] for name in layout.weights}, method.sparsity)
        chosen = [
            layout.places[name].start + _most_voted(votes[layout.places[name]], weights[layout.places[name]], count)
            for name, count in counts.items()
        ]
        kept = np.concatenate(chosen)
    else:
        kept = _most_voted(votes, weights, weights.size - removed_count(weights.size, method.sparsity))
    return FlatUpdate(kept.astype(np.uint32), weights[kept], base.flat.others.copy(), 0)


def _count(updates: RoundEntries) -> Votes:
    """The votes for each weight, in device order; none for a weight that the round's model does not have."""
    votes = np.zeros(updates.base.flat.weights.size)
    for member in updates.members:
        listed = updates.entries(member, 0, updates.blocks)
        named = np.flatnonzero(listed.values)
        votes[named if listed.positions is None else listed.positions[named]] += member.weight
    votes[updates.base.flat.weights == 0] = 0
    return votes


def _most_voted(votes: Votes, weights: FloatArray, count: int) -> NDArray[np.int64]:
    """The positions of the `count` weights with the most votes, increasing; fewer if fewer have any."""
    voted = np.flatnonzero(votes)
    order = np.lexsort((-np.abs(weights[voted]), -votes[voted]))
    return np.sort(voted[order[:count]])


def regrown(mean: FlatUpdate, base: RoundBase, share: Fraction) -> FlatUpdate:
    """The mean of updates with votes in it, pruned to the target, with a share of each layer's weights swapped.

    What the base lacks is a vote. The smallest weights of a layer give way to as many of its most voted zeros: those
    whose signed votes have the largest sum. With a share of 0 all votes are dropped.
    """
    manifest, layout = base.manifest, base.layout
    method, names = manifest.method, manifest.prunable
    state = dict(mean.tensors(layout))
    before = {name: base.flat.weights[layout.places[name]].reshape(layout.shapes[name]) != 0 for name in names}
    votes = {name: np.where(before[name], np.float32(0), state[name]) for name in names}
    trained = state | {name: np.where(before[name], state[name], np.float32(0)) for name in names}
    kept = prune_model(method, trained, names, method.sparsity, positions=manifest.positions)
    held = {name: int(np.count_nonzero(kept[name])) for name in names}
    counts = regrow_counts(held, share, sum(held.values()))
    return flatten(kept | {name: _swapped(kept[name], votes[name], counts[name]) for name in names}, layout)


def _swapped(weights: FloatArray, votes: FloatArray, count: int) -> FloatArray:
    """A layer with `count` of its smallest weights swapped for zeros with votes, or as many as there are.

    A new weight starts with the size of the smallest one that stays. What is smaller was just judged to be dispensable,
    so it hardly disturbs the network. But it can grow: with powers, a weight's gradient vanishes with its size, and so
    it has the same chance as the weakest of the others.
    """
    swapped, flat_votes = weights.reshape(-1).copy(), votes.reshape(-1)
    present, wanted = np.flatnonzero(swapped), np.flatnonzero(flat_votes)
    count = min(count, wanted.size)
    if count == 0:
        return weights
    order = present[np.argsort(np.abs(swapped[present]), kind="stable")]
    chosen = wanted[np.argsort(-np.abs(flat_votes[wanted]), kind="stable")[:count]]
    start = np.abs(swapped[order[count]])
    swapped[order[:count]] = 0
    swapped[chosen] = np.sign(flat_votes[chosen]) * start
    return swapped.reshape(weights.shape)
