"""Applies the method's mask to the model that a round's updates were combined into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from sparsyedge.coordinator.aggregation.mask_votes import regrown, start_of_votes
from sparsyedge.coordinator.aggregation.round_entries import RoundEntries
from sparsyedge.edge.model.allocation import prune_model
from sparsyedge.edge.model.methods import Method
from sparsyedge.edge.model.prune import removed_count
from sparsyedge.edge.tensors import State
from sparsyedge.edge.wire.flat_frame import FlatUpdate, flatten

__all__ = ["LayerDensities", "apply_mask_rule", "masked", "prune_layers"]


def masked(mean: FlatUpdate, updates: RoundEntries, *, round_number: int, rounds: int) -> FlatUpdate:
    """Apply the method's mask for this round to the combined model of these updates."""
    manifest, layout = updates.base.manifest, updates.base.layout
    method = manifest.method
    if method.votes_in(round_number):
        return start_of_votes(updates)
    if share := method.regrown_share(round_number):
        # After the last round nobody would train what has grown.
        return regrown(mean, updates.base, share if round_number < rounds else Fraction(0))
    densities = LayerDensities(manifest.prunable)
    if method.prunes_by_layer(round_number):
        densities.count(updates)
    elif method.mask not in ("fixed", "last-round"):
        return mean
    state = dict(mean.tensors(layout))
    found = apply_mask_rule(method, state, densities, manifest.positions, round_number=round_number, rounds=rounds)
    return mean if found is state else flatten(found, layout)


def apply_mask_rule(
    method: Method,
    mean: State,
    densities: LayerDensities,
    positions: Mapping[str, int],
    *,
    round_number: int,
    rounds: int,
) -> State:
    """Apply the method's mask for this round to the averaged model; `positions` names the prunable layers."""
    first, last = round_number == 1, round_number == rounds
    if (method.mask == "fixed" and first) or (method.mask == "last-round" and last):
        return prune_model(method, mean, list(positions), method.sparsity, positions=positions)
    if method.prunes_by_layer(round_number):
        return prune_layers(mean, densities.kept(mean, method.sparsity))
    return mean


class LayerDensities:
    """The average density of each layer over the devices, weighted by samples."""

    def __init__(self, prunable: Sequence[str]) -> None:
        self._nonzeros: dict[str, float] = dict.fromkeys(prunable, 0)

    def count(self, updates: RoundEntries) -> None:
        """Count the non-zeros of all updates."""
        layout = updates.base.layout
        for member in updates.members:
            listed = updates.entries(member, 0, updates.blocks)
            positions = np.arange(listed.values.size) if listed.positions is None else listed.positions
            positions = positions[np.flatnonzero(listed.values)]
            starts = np.searchsorted(positions, layout.weight_starts)
            for index, name in enumerate(layout.weights):
                self.add(name, member.weight, int(starts[index + 1] - starts[index]))

    def add(self, name: str, weight: float, nonzeros: int) -> None:
        """Count the non-zeros of one layer of one device."""
        self._nonzeros[name] += weight * nonzeros

    def kept(self, state: State, sparsity: float) -> dict[str, int]:
        """Return how many weights of each layer to keep: the devices' average count, scaled to the overall target."""
        size = sum(state[name].size for name in self._nonzeros)
        target = size - removed_count(size, sparsity)
        total = sum(self._nonzeros.values())
        if total == 0:
            return dict.fromkeys(self._nonzeros, 0)
        # A layer's mean count is nonzeros / samples, the scale is target * samples / total. Samples cancel out, which
        # leaves whole numbers.
        return {name: min(state[name].size, int(count * target // total)) for name, count in self._nonzeros.items()}


def prune_layers(state: State, kept: dict[str, int]) -> State:
    """Return a copy of the state; each named tensor keeps only that many of its largest magnitudes."""
    pruned = dict(state)
    for name, count in kept.items():
        pruned.update(_keep_largest(state, name, count))
    return pruned


def _keep_largest(state: State, name: str, count: int) -> State:
    tensor = state[name].copy()
    order = np.argsort(-np.abs(tensor.reshape(-1)), kind="stable")
    tensor.reshape(-1)[order[count:]] = 0
    return {name: tensor}
