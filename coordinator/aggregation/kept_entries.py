"""The updates of a round side by side: one block of a tensor from all devices, without whole updates in memory.

Rules that compare devices entry by entry need all of them at once. We decode each update once and write the entries it
keeps to an unnamed file, sorted by tensor and position. Memory holds one block, however many devices there are.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.tensors import FloatArray, MadeOnDemand, Tensors

__all__ = ["EntryBlock", "KeptEntries"]

ENTRY = np.dtype([("position", "<u4"), ("value", "<f4")])
STRETCH_ENTRIES = 1 << 21
"""Entries per block, over all devices."""
LONGEST, SHORTEST = 1 << 16, 1 << 10


class EntryBlock(NamedTuple):
    """The entries of one tensor that at least one device keeps; all others have their rest value."""

    positions: NDArray[np.int64]
    values: FloatArray
    """(devices, positions)."""
    rest: FloatArray
    """Per position, the value for devices that do not keep it."""
    kept: NDArray[np.bool_]
    """(devices, positions): whether the device keeps it."""


class KeptEntries:
    """The entries that each update of a round keeps; a context manager that deletes its file on exit.

    `rest` maps each tensor that devices may keep in part to the values of its other entries (None: zero).
    """

    def __init__(self, folder: Path, *, devices: int, rest: Mapping[str, FloatArray | None]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115, closed by __exit__
        self._rest = rest
        self._length = min(LONGEST, max(SHORTEST, STRETCH_ENTRIES // max(1, devices)))
        self._ends: list[dict[str, NDArray[np.int64]]] = []
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._written = 0
        self.weights: list[float] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add_all(self, updates: Iterable[tuple[float, Tensors]]) -> Self:
        """Add the updates one by one; if one cannot be read, deletes the file and raises."""
        try:
            for weight, state in updates:
                self.weights.append(weight)
                self._ends.append({name: self._write(name, state[name]) for name in state})
                # Free it before the next one is decoded.
                del state
            self._file.flush()
        except BaseException:
            self._file.close()
            raise
        return self

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._shapes)

    def rest_of(self, name: str) -> FloatArray:
        """Return a copy of the tensor's rest values."""
        found = self._rest.get(name)
        return np.zeros(self._shapes[name], dtype=np.float32) if found is None else found.copy()

    def blocks(self, name: str) -> Iterator[EntryBlock]:
        """Yield the tensor's blocks in order."""
        rest, whole = self._rest.get(name), name not in self._rest
        for number in range(len(self._ends[0][name]) - 1):
            found = [self._read(device, name, number, number + 1) for device in range(len(self._ends))]
            positions = np.unique(np.concatenate([entries["position"] for entries in found])).astype(np.int64)
            near = np.zeros(positions.size, dtype=np.float32) if rest is None else rest.reshape(-1)[positions]
            values = np.repeat(near[np.newaxis], len(found), axis=0)
            kept = np.full(values.shape, whole)
            for row, entries in enumerate(found):
                columns = np.searchsorted(positions, entries["position"])
                values[row, columns] = entries["value"]
                kept[row, columns] = True
            yield EntryBlock(positions, values, near, kept)

    def update(self, device: int) -> Tensors:
        """Return one device's update; builds each tensor on demand."""

        def make(name: str) -> FloatArray:
            tensor = self.rest_of(name)
            entries = self._read(device, name, 0, len(self._ends[device][name]) - 1)
            tensor.reshape(-1)[entries["position"]] = entries["value"]
            return tensor

        return MadeOnDemand(self.names, make)

    def _write(self, name: str, tensor: FloatArray) -> NDArray[np.int64]:
        """Write the kept entries; returns where each block starts in the file and where the last ends, in entries."""
        self._shapes[name] = tensor.shape
        values = tensor.reshape(-1)
        positions = np.arange(values.size) if name not in self._rest else np.flatnonzero(self._is_kept(name, values))
        entries = np.empty(positions.size, dtype=ENTRY)
        entries["position"], entries["value"] = positions, values[positions]
        self._file.write(entries.data)
        bounds = [*range(0, values.size, self._length), values.size]
        ends: NDArray[np.int64] = self._written + np.searchsorted(positions, bounds)
        self._written += positions.size
        return ends

    def _is_kept(self, name: str, values: FloatArray) -> NDArray[np.bool_]:
        rest = self._rest[name]
        kept: NDArray[np.bool_] = values != (0 if rest is None else rest.reshape(-1))
        return kept

    def _read(self, device: int, name: str, first: int, last: int) -> NDArray[np.void]:
        start, stop = (int(end) for end in self._ends[device][name][[first, last]])
        content = b"".join(self._pieces(start * ENTRY.itemsize, stop * ENTRY.itemsize))
        return np.frombuffer(content, dtype=ENTRY)

    def _pieces(self, start: int, stop: int) -> Iterator[bytes]:
        """Yield these bytes of the file; `pread` may return fewer than requested."""
        while start < stop:
            piece = os.pread(self._file.fileno(), stop - start, start)
            if not piece:
                raise OSError("the file of a round's updates is shorter than what was written to it")
            start += len(piece)
            yield piece
