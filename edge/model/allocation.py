"""How a budget of weights is shared among layers; each layer keeps its largest.

`erk` gives every layer a density by its shape alone: the Erdos-Renyi-Kernel rule (Mocanu et al. 2018, Evci et al. 2020)
takes the sum of its dimensions over their product, so small layers stay dense and large ones pay. `lamp` (Lee et al.
2021) ranks a weight by its square over the squares of all weights of its layer that are at least as large, so that no
layer runs empty; a price divides that by the layer's positions to a power, so that weights which cost many
multiply-adds have to be worth it.

The squares are those of w, not of theta: in float64 they are exact, while the `pow` of one machine may differ from that
of another in the last bit. The rest are sums in a fixed order, divisions and square roots, which all machines round
alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from sparsyedge.edge.model.methods import PRICE_STEPS, Method
from sparsyedge.edge.model.prune import keep_count, prune_global, removed_count
from sparsyedge.edge.tensors import FloatArray, State, first_nonfinite

__all__ = ["erk_counts", "lamp_counts", "prune_model"]

Scores = NDArray[np.float64]


def prune_model(
    method: Method, state: State, names: Sequence[str], sparsity: float, *, positions: Mapping[str, int] | None = None
) -> State:
    """A copy of the state whose named tensors keep as many weights as the target leaves, shared as the method says.

    `positions` (Manifest.positions) may be missing if the method has no price. If weights are missing already, a layer
    may stay below its share. A state that is not finite comes back as it is: its layers have no order.
    """
    if method.allocation is UNSET:
        return prune_global(state, names, sparsity)
    tensors = {name: state[name] for name in names}
    if first_nonfinite(tensors) is not None:
        return dict(state)
    if method.allocation == "erk":
        counts = erk_counts({name: tensor.shape for name, tensor in tensors.items()}, sparsity)
    else:
        size = sum(tensor.size for tensor in tensors.values())
        counts = lamp_counts(tensors, size - removed_count(size, sparsity), _prices(method, names, positions))
    return state | {name: keep_count(tensor, counts[name]) for name, tensor in tensors.items()}


def lamp_counts(tensors: Mapping[str, FloatArray], budget: int, prices: Mapping[str, float]) -> dict[str, int]:
    """How many weights each layer keeps if the budget goes to the highest scores, which its price divides.

    Of equal scores those of the first layers lose, as the first weights do in a global ranking.
    """
    if budget <= 0:
        return dict.fromkeys(tensors, 0)
    scores = {name: _lamp_scores(tensor, budget) / prices[name] for name, tensor in tensors.items()}
    together = np.concatenate(list(scores.values()))
    if together.size <= budget:
        return {name: found.size for name, found in scores.items()}
    place = together.size - budget
    together.partition(place)
    least = together[place]
    counts = {name: int(np.count_nonzero(found > least)) for name, found in scores.items()}
    left = budget - sum(counts.values())
    for name in reversed(counts):
        taken = min(left, int(np.count_nonzero(scores[name] == least)))
        counts[name] += taken
        left -= taken
    return counts


def _lamp_scores(tensor: FloatArray, most: int) -> Scores:
    """The scores of a layer's non-zero weights, or of its `most` largest and their equals, in falling order."""
    magnitudes = np.abs(tensor).reshape(-1)
    magnitudes = magnitudes[magnitudes > 0]
    if magnitudes.size > most:
        least = np.partition(magnitudes, magnitudes.size - most)[magnitudes.size - most]
        magnitudes = magnitudes[magnitudes >= least]
    if not magnitudes.size:
        return np.empty(0)
    magnitudes.sort()
    falling = magnitudes[::-1]
    squares = np.square(falling, dtype=np.float64)
    sums = np.cumsum(squares)
    # Equal weights share one score: the sum goes to the last of them.
    last = np.flatnonzero(np.append(falling[1:] != falling[:-1], True))
    return np.repeat(squares[last] / sums[last], np.diff(last, prepend=-1))


def _prices(method: Method, names: Sequence[str], positions: Mapping[str, int] | None) -> dict[str, float]:
    price = method.allocation_price
    if price is UNSET:
        return dict.fromkeys(names, 1.0)
    if positions is None:
        raise ValueError("a price of multiply-adds needs the positions of every layer")
    return {name: _quarter_power(positions[name], round(price * PRICE_STEPS)) for name in names}


def _quarter_power(positions: int, quarters: int) -> float:
    """`positions` to the power of `quarters` / 4 by square roots, which all machines round alike; `pow` they do not."""
    base = float(max(1, positions))
    whole, rest = divmod(quarters, PRICE_STEPS)
    half, quarter = math.sqrt(base), math.sqrt(math.sqrt(base))
    return math.prod([base] * whole + ([half] if rest >= 2 else []) + ([quarter] if rest % 2 else []))


def erk_counts(shapes: Mapping[str, tuple[int, ...]], sparsity: float) -> dict[str, int]:
    """How many weights each layer keeps by its shape; together exactly as many as the target leaves."""
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    total = sum(sizes.values())
    budget = total - removed_count(total, sparsity)
    wanted = _spread({name: float(sum(shape)) for name, shape in shapes.items()}, sizes, budget)
    counts = {name: math.floor(share) for name, share in wanted.items()}
    by_remainder = sorted(wanted, key=lambda name: (counts[name] - wanted[name], name))
    open_layers = [name for name in by_remainder if counts[name] < sizes[name]]
    for name in open_layers[: budget - sum(counts.values())]:
        counts[name] += 1
    return counts


def _spread(weights: Mapping[str, float], sizes: Mapping[str, int], budget: int) -> dict[str, float]:
    """Share a budget in proportion to `weights`; what a layer cannot hold goes to the others."""
    full: set[str] = set()
    while True:
        left = budget - sum(sizes[name] for name in full)
        others = sum(weight for name, weight in weights.items() if name not in full)
        scale = left / others if others else 0.0
        beyond = {name for name in weights if name not in full and scale * weights[name] > sizes[name]}
        if not beyond:
            return {name: float(sizes[name]) if name in full else scale * weights[name] for name in weights}
        full |= beyond
