"""A sparse start: most weights are zero before round 1, so no device ever holds a dense model.

Densities of layers follow the Erdos-Renyi-Kernel rule (edge/model/allocation.py). Which weights of a layer stay
is drawn at random.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sparsyedge.edge.model.allocation import erk_counts

__all__ = ["start_sparse"]


def start_sparse(model: nn.Module, prunable: Sequence[str], *, sparsity: float, seed: int) -> None:
    """Set all but a share of the prunable weights to zero, in place; the seed decides which."""
    tensors = {name: model.get_parameter(name) for name in sorted(prunable)}
    counts = erk_counts({name: tuple(tensor.shape) for name, tensor in tensors.items()}, sparsity)
    rng = np.random.default_rng([seed, len(tensors)])
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.mul_(torch.from_numpy(_draw(tensor.numel(), counts[name], rng)).reshape(tensor.shape))


def _draw(size: int, kept: int, rng: np.random.Generator) -> NDArray[np.float32]:
    mask = np.zeros(size, dtype=np.float32)
    mask[rng.permutation(size)[:kept]] = 1
    return mask
