"""Pruning and masks on dictionaries of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sparsyedge.edge.model.allocation import erk_counts
from sparsyedge.edge.model.methods import Method

__all__ = ["Tensors", "largest_per_layer", "nonzeros", "prune", "prune_globally"]

Tensors = dict[str, Tensor]


def prune_globally(state: Tensors, names: Sequence[str], sparsity: float) -> Tensors:
    """Zero the round(sparsity * N) smallest magnitudes across the named tensors.

    A stable sort breaks ties by name and place.
    """
    flat = torch.cat([state[name].abs().reshape(-1) for name in names])
    removed = round(sparsity * flat.numel())
    keep = torch.ones_like(flat, dtype=torch.bool)
    keep[torch.argsort(flat, stable=True)[:removed]] = False
    pruned = dict(state)
    start = 0
    for name in names:
        tensor = state[name]
        pruned[name] = tensor * keep[start : start + tensor.numel()].reshape(tensor.shape)
        start += tensor.numel()
    return pruned


def prune(method: Method, state: Tensors, sparsity: float, positions: Mapping[str, int]) -> Tensors:
    """Prune the layers that `positions` names to a target, shared among them by the method's allocation."""
    if method.allocation == "erk":
        counts = erk_counts({name: tuple(state[name].shape) for name in positions}, sparsity)
    elif method.allocation == "lamp":
        price = method.allocation_price or 0.0
        scores = {name: _lamp(state[name]) / count**price for name, count in positions.items()}
        ranked = prune_globally(scores, list(positions), sparsity)
        counts = {name: int(torch.count_nonzero(ranked[name])) for name in positions}
    else:
        return prune_globally(state, list(positions), sparsity)
    # Among equal magnitudes the last stay.
    flipped = {name: state[name].reshape(-1).flip(0) for name in counts}
    kept = largest_per_layer(flipped, counts)
    return state | {name: kept[name].flip(0).reshape(state[name].shape) for name in counts}


def _lamp(weight: Tensor) -> Tensor:
    """Each weight's square over the squares of all weights of its layer that are at least as large."""
    squares, places, counts = torch.unique(weight.double().square(), return_inverse=True, return_counts=True)
    sums = (squares * counts).flip(0).cumsum(0).flip(0)
    return torch.where(squares > 0, squares / sums, 0.0)[places]


def largest_per_layer(state: Tensors, counts: Mapping[str, int]) -> Tensors:
    """Keep the given number of largest magnitudes in each named tensor."""
    pruned = dict(state)
    for name, count in counts.items():
        flat = state[name].reshape(-1)
        kept = torch.zeros_like(flat)
        places = torch.argsort(flat.abs(), descending=True, stable=True)[:count]
        kept[places] = flat[places]
        pruned[name] = kept.reshape(state[name].shape)
    return pruned


def nonzeros(state: Mapping[str, Tensor], names: Sequence[str]) -> int:
    return sum(int(torch.count_nonzero(state[name])) for name in names)
