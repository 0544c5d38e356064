"""Pruning and masks on dictionaries of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

__all__ = ["Tensors", "largest_per_layer", "nonzeros", "prune_globally"]

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
