"""Turns a round's updates into the next model. The method decides which mean to take and how to set the mask."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from sparsyedge.coordinator.aggregation.mean import average
from sparsyedge.edge.model.methods import Method
from sparsyedge.edge.model.prune import prune_global, removed_count
from sparsyedge.edge.tensors import State, Tensors

__all__ = ["LayerDensities", "apply_mask_rule", "average_nonzero", "combine", "prune_layers"]


def combine(
    updates: Iterable[tuple[float, Tensors]],
    method: Method,
    prunable: Sequence[str],
    *,
    round_number: int,
    rounds: int,
    rule: Callable[[Iterable[tuple[float, Tensors]]], State] | None = None,
) -> State:
    """Combine the updates, (weight, state) in device order and one at a time, into the next model.

    Uses `rule` if given, otherwise the method's own mean.
    """
    densities = LayerDensities(prunable)
    # Count only if needed: it rebuilds every prunable tensor of every update.
    watched = densities.watch(updates) if method.mask in ("evolving", "layer-density") else updates
    if rule is not None:
        mean = rule(watched)
    else:
        mean = average(watched) if method.aggregation == "mean" else average_nonzero(watched, prunable)
    return apply_mask_rule(method, mean, densities, prunable, round_number=round_number, rounds=rounds)


def apply_mask_rule(
    method: Method, mean: State, densities: LayerDensities, prunable: Sequence[str], *, round_number: int, rounds: int
) -> State:
    """Apply the method's mask for this round to the averaged model."""
    first, last = round_number == 1, round_number == rounds
    if (method.mask == "fixed" and first) or (method.mask == "last-round" and last):
        return prune_global(mean, prunable, method.sparsity)
    if method.mask == "evolving" or (method.mask == "layer-density" and first):
        return prune_layers(mean, densities.kept(mean, method.sparsity))
    return mean


class LayerDensities:
    """The average density of each layer over the devices, weighted by samples."""

    def __init__(self, prunable: Sequence[str]) -> None:
        self._nonzeros: dict[str, float] = dict.fromkeys(prunable, 0)
        self._samples: float = 0

    def watch(self, updates: Iterable[tuple[float, Tensors]]) -> Iterator[tuple[float, Tensors]]:
        """Pass the updates through and count their non-zeros."""
        for samples, state in updates:
            self._samples += samples
            for name in self._nonzeros:
                self._nonzeros[name] += samples * int(np.count_nonzero(state[name]))
            yield samples, state
            # Free it before the next one is decoded.
            del state

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


def average_nonzero(updates: Iterable[tuple[float, Tensors]], prunable: Sequence[str]) -> State:
    """Average each prunable weight over the devices that sent it, and everything else over all devices, by samples.

    A weight that no device sent is zero.
    """
    senders: dict[str, NDArray[np.float64]] = {}
    total: float = 0

    def counted() -> Iterator[tuple[float, Tensors]]:
        nonlocal total
        for samples, state in updates:
            total += samples
            for name in prunable:
                sent = np.where(state[name] != 0, np.float64(samples), 0.0)
                senders[name] = senders[name] + sent if name in senders else sent
            yield samples, state
            del state

    mean = average(counted())
    for name in prunable:
        scale = np.divide(total, senders[name], out=np.zeros_like(senders[name]), where=senders[name] > 0)
        mean[name] = (mean[name] * scale).astype(np.float32)
    return mean
