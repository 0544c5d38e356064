"""Where a layer's trained values lie in its weight tensor.

The values of an unpruned layer come in long stretches of neighbours. Their starts and lengths take a fraction of the
memory of the positions, which is that of the weights.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.tensors import FloatArray

__all__ = ["Places"]

Positions = NDArray[np.int32]

SHORTEST_STRETCH = 8
"""Mean length from which stretches are kept instead of positions; below, expanding them costs more than it saves."""


class Places:
    """The positions of a layer's values, in the order of the values."""

    def __init__(self, positions: Positions) -> None:
        self.size = positions.size
        # A position that does not follow its predecessor begins a stretch.
        begins = np.flatnonzero(np.diff(positions) != 1) + 1 if positions.size else np.empty(0, dtype=np.int64)
        self._positions: Positions | None = None
        if SHORTEST_STRETCH * (begins.size + 1) > positions.size:
            self._positions = positions
            return
        ends = np.append(begins, positions.size)
        begins = np.insert(begins, 0, 0)
        self._lengths = (ends - begins).astype(np.int32)
        # What to add to a value's number to get its position.
        self._ahead = (positions[begins] - begins).astype(np.int32)

    def take(self, weights: FloatArray) -> FloatArray:
        """A copy of the values, from a tensor of the layer's shape."""
        return weights.reshape(-1)[self._all()]

    def put(self, values: FloatArray, dense: FloatArray) -> None:
        """Write the values to their places in a flat tensor."""
        dense[self._all()] = values

    def _all(self) -> Positions:
        if self._positions is not None:
            return self._positions
        positions = np.repeat(self._ahead, self._lengths)
        positions += np.arange(self.size, dtype=np.int32)
        return positions
