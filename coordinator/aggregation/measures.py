"""What we measure of an update when it arrives: how hard it pulls on the model, and how far it moved."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparsyedge.coordinator.aggregation.round_base import Products, RoundBase
from sparsyedge.edge.tensors import FloatArray
from sparsyedge.edge.wire.flat_frame import FlatUpdate

__all__ = ["Measures", "distance", "measure", "pruned_exactly"]


@dataclass(frozen=True)
class Measures:
    """A few numbers, whatever the size of the model: the coordinator keeps them for every device of a round."""

    change: NDArray[np.float64]
    """By tensor, weights first, the norm of the change to the entries it keeps."""
    pruned: float
    """The norm of all the entries it prunes, accurate to about ten digits."""
    l2: float
    """The distance to the base, averaged over the trained tensors."""
    cosine: float
    kept: int
    """How many weights it keeps."""
    norms: NDArray[np.float64]
    """By tensor, weights first, the norm of the update itself."""


def measure(update: FlatUpdate, base: RoundBase, products: Products, near: FloatArray) -> Measures:
    """Measure an update, given its products with its base and the base's entries where it has its own."""
    weights = len(base.layout.weights)
    kept = int(products.nonzeros[:weights].sum())
    # A codec may round a value to zero: then the entry is listed and still zero.
    lists_zeros = kept < update.values.size
    l2, cosine = distance(products, base)
    gone = 0.0
    if base.zeros_are_pruned:
        listed = float(products.listed_squares[:weights].sum())
        gone = base.squares[:weights].sum() - (listed - _square_at_zeros(update, near) if lists_zeros else listed)
    return Measures(
        change=base.changes(update, near, lists_zeros=lists_zeros),
        pruned=math.sqrt(max(0.0, float(gone))),
        l2=l2,
        cosine=cosine,
        kept=kept,
        norms=np.sqrt(products.squares),
    )


def _square_at_zeros(update: FlatUpdate, near: FloatArray) -> float:
    """The sum of squares of the base's entries where the update lists a zero."""
    zeros = near[update.values == 0].astype(np.float64)
    return float(np.einsum("i,i->", zeros, zeros))


def distance(products: Products, base: RoundBase) -> tuple[float, float]:
    """The L2 distance and the cosine, averaged over the trained tensors; the cosine skips all-zero tensors."""
    trained = base.trained
    l2s = np.sqrt(products.difference[trained])
    norms = np.sqrt(products.base_squares[trained]) * np.sqrt(products.squares[trained])
    mixed = products.mixed[trained][norms > 0]
    cosines = mixed / norms[norms > 0]
    return _mean(l2s), _mean(cosines)


def pruned_exactly(update: FlatUpdate, base: RoundBase) -> float:
    """The norm of all the entries that an update prunes, to the last bit; takes time with the size of the model."""
    if not base.zeros_are_pruned:
        return 0.0
    total, state = 0.0, update.tensors(base.layout)
    for name in base.layout.weights:
        gone = base.flat.weights[base.layout.places[name]][state[name].reshape(-1) == 0]
        total = math.hypot(total, _norm(gone))
    return total


def _norm(values: FloatArray, piece: int = 1 << 16) -> float:
    parts = (values[start : start + piece].astype(np.float64) for start in range(0, values.size, piece))
    return math.sqrt(sum(float(np.einsum("i,i->", part, part)) for part in parts))


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean()) if values.size else math.nan
