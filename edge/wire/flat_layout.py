"""One index space for a model's weights and one for its other tensors, so that an update is two flat arrays. No I/O.

Code that handles thousands of updates cannot afford a dozen numpy calls per tensor: it works on all tensors at once.
Weights come in the order of a frame (by name), entry by entry; so do the other tensors.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.tensors import FloatArray, State, Tensors

__all__ = ["FlatLayout", "first_at", "kind_and_name"]

Starts = NDArray[np.int64]


def first_at(positions: NDArray[np.uint32], bounds: Starts) -> Starts:
    """Where positions reach each bound. numpy would first make all of them as wide as the bounds."""
    return np.searchsorted(positions, bounds.astype(np.uint32)).astype(np.int64)


def kind_and_name(name: str) -> tuple[str, str]:
    """Sorts biases next to biases and variances next to variances: similar values compress better together."""
    return name.rpartition(".")[2], name


@dataclass(frozen=True)
class FlatLayout:
    """Where each tensor of a model lies in the flat arrays."""

    shapes: Mapping[str, tuple[int, ...]]
    weights: tuple[str, ...]
    others: tuple[str, ...]

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]], prunable: Collection[str]) -> FlatLayout:
        """The layout of a model with these tensors."""
        others = sorted(set(shapes) - set(prunable), key=kind_and_name)
        return cls(shapes, tuple(sorted(set(shapes) & set(prunable))), tuple(others))

    @cached_property
    def weight_starts(self) -> Starts:
        """Where each weight starts, and the end of the last."""
        return self._starts(self.weights)

    @cached_property
    def other_starts(self) -> Starts:
        """The same for the other tensors."""
        return self._starts(self.others)

    def find(self, positions: NDArray[np.uint32]) -> Starts:
        """Where each weight's entries start in a list of increasing positions, and the end of the last."""
        return first_at(positions, self.weight_starts)

    @property
    def weight_entries(self) -> int:
        return int(self.weight_starts[-1])

    @property
    def other_entries(self) -> int:
        return int(self.other_starts[-1])

    @cached_property
    def places(self) -> dict[str, slice]:
        """Each tensor's slice of the flat array that it lies in."""
        return {
            name: slice(int(starts[index]), int(starts[index + 1]))
            for names, starts in ((self.weights, self.weight_starts), (self.others, self.other_starts))
            for index, name in enumerate(names)
        }

    def views(self, weights: FloatArray, others: FloatArray) -> State:
        """The tensors of a model as views into flat arrays."""
        return {
            name: source[self.places[name]].reshape(self.shapes[name])
            for names, source in ((self.weights, weights), (self.others, others))
            for name in names
        }

    def empty(self) -> State:
        """A model of zeros whose tensors are views into two flat arrays."""
        zeros = [np.zeros(size, dtype=np.float32) for size in (self.weight_entries, self.other_entries)]
        return self.views(zeros[0], zeros[1])

    def moved(self, state: State) -> State:
        """The same model in two flat arrays; empties `state` tensor by tensor, so that memory never holds both."""
        found = self.empty()
        for name in list(state):
            found[name][...] = state.pop(name)
        return found

    def flat(self, state: Tensors, names: Collection[str]) -> FloatArray:
        """These tensors in one array; shares memory with a state that `views` made."""
        tensors = [state[name] for name in names]
        if (shared := _shared([tensor for tensor in tensors if tensor.size])) is not None:
            return shared
        return np.concatenate([tensor.reshape(-1) for tensor in tensors] or [np.empty(0, dtype=np.float32)])

    def _starts(self, names: Collection[str]) -> Starts:
        return np.cumsum([0, *(math.prod(self.shapes[name]) for name in names)], dtype=np.int64)


def _shared(tensors: list[FloatArray]) -> FloatArray | None:
    """The array that the tensors fill one after the other, if there is one."""
    owner = tensors[0].base if tensors else None
    if not isinstance(owner, np.ndarray) or owner.dtype != np.float32 or owner.ndim != 1:
        return None
    address = owner.__array_interface__["data"][0]
    for tensor in tensors:
        if tensor.base is not owner or tensor.__array_interface__["data"][0] != address:
            return None
        address += tensor.nbytes
    return owner if address == owner.__array_interface__["data"][0] + owner.nbytes else None
