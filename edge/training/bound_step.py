"""A step's graph run on arrays of ours: the new values of weights overwrite the old ones, so none exists twice."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["BoundStep"]

LOSS = "loss"
NEW = ".new"
"""Suffix of an output that is a tensor's next value."""


class BoundStep:
    """Runs the graph; keeps its inputs bound from step to step, since most of them stay where they are."""

    def __init__(self, session: Any) -> None:
        """`session` is a plain session of onnxruntime, whose outputs are a scalar `loss` and next values."""
        self._session = session
        self._binding = session.io_binding()
        self._next = [output.name for output in session.get_outputs() if output.name != "loss"]
        self._loss = np.empty(
            [size for output in session.get_outputs() if output.name == "loss" for size in output.shape], np.float32
        )
        self._bound: dict[str, NDArray[Any]] = {}
        self._apart: dict[str, NDArray[Any]] = {}

    def run(
        self,
        fixed: Mapping[str, NDArray[Any]],
        changing: Mapping[str, NDArray[Any]],
        *,
        in_place: Collection[str],
    ) -> float:
        """One step: writes the next values into the arrays of `changing`, and returns the loss.

        The next values of `in_place` go straight there: nobody in the graph may read such a tensor once its update has
        begun. After an error these are neither the old values nor the new ones.
        """
        for name, array in (*fixed.items(), *changing.items()):
            self._bind_input(name, array)
        for name in self._next:
            tensor = name.removesuffix(NEW)
            place = changing[tensor] if tensor in in_place else self._place_apart(tensor, changing[tensor])
            self._bind_output(name, place)
        self._bind_output(LOSS, self._loss)
        self._session.run_with_iobinding(self._binding)
        for tensor, value in self._apart.items():
            np.copyto(changing[tensor], value)
        return float(self._loss.reshape(-1)[0])

    def _place_apart(self, tensor: str, like: NDArray[Any]) -> NDArray[Any]:
        """Where the next value of a tensor goes that must not change during the step."""
        place = self._apart.get(tensor)
        if place is None or place.shape != like.shape:
            place = self._apart[tensor] = np.empty_like(like)
        return place

    def _bind_input(self, name: str, array: NDArray[Any]) -> None:
        if self._bound.get(name) is not array:
            self._bound[name] = array
            self._binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)

    def _bind_output(self, name: str, array: NDArray[Any]) -> None:
        if self._bound.get(name) is not array:
            self._bound[name] = array
            self._binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
