"""The exported checkpoint: the initial state, as onnxruntime-training writes it or, without its files, as a frame.

Frames come from a network all the time, so their reader believes nothing that the file says (edge/wire/frame.py).
onnxruntime-training's file is a FlatBuffer, read here without its API. We use this part of its schema
(onnxruntime/core/flatbuffers/schema):

    root: Checkpoint   field 1 module_state: ModuleState
    ModuleState        field 0 requires_grad_params, field 1 frozen_params: [Tensor]
    Tensor             field 0 name, field 2 dims: [int64], field 3 data_type: int32 (1 is float32), field 4 raw_data

A table begins with the distance back to its vtable, which holds the position of every field. A reference is the
distance forward to its target. A vector or string begins with its length.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import numpy as np

from sparsyedge.edge.errors import ArtifactError, FrameError
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.tensors import FloatArray, MadeOnDemand, State, Tensors, model_id
from sparsyedge.edge.wire.envelope import MAGIC
from sparsyedge.edge.wire.frame import decode_lazily, frame_of

__all__ = ["encode_checkpoint", "open_initial_state", "read_initial_state"]

IDENTIFIER = b"ODTC"
FLOAT = 1
FRAME_LABEL = "export"
"""What stands for the run in a checkpoint's frame, which belongs to none."""


def encode_checkpoint(state: Mapping[str, FloatArray], *, prunable: Collection[str]) -> bytes:
    """The state as the checkpoint of an export without onnxruntime-training's files."""
    return frame_of(state, run=FRAME_LABEL, round_number=0, base_id=model_id(state), prunable=prunable)


def read_initial_state(artifacts: Artifacts) -> State:
    """The checkpoint's parameters and statistics; raises ArtifactError if they do not match the manifest."""
    return dict(open_initial_state(artifacts))


def open_initial_state(artifacts: Artifacts) -> Tensors:
    """The same, as a state that reads each tensor from the file when it is asked for."""
    path = artifacts.path("checkpoint")
    manifest = artifacts.manifest
    state = _open(path, manifest.shapes)
    found = model_id(state)
    if found != manifest.initial_model:
        raise ArtifactError(
            f"{path} holds model {found[:12]}, the manifest says {manifest.initial_model[:12]}; {REMEDY}"
        )
    return state


REMEDY = "run `sparsyedge export` again"


def _open(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> Tensors:
    with path.open("rb") as file:
        start = file.read(len(IDENTIFIER) + 4)
    try:
        if start.startswith(MAGIC):
            return decode_lazily(path.read_bytes(), shapes)
        if start[4:] != IDENTIFIER:
            raise ArtifactError(f"{path} is not a checkpoint; {REMEDY}")
        return _open_flat_buffer(path, shapes)
    except (FrameError, struct.error, ValueError, IndexError) as error:
        raise ArtifactError(f"{path} cannot be read as a checkpoint: {error}; {REMEDY}") from error


def _open_flat_buffer(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> Tensors:
    # Mapped for its tables alone: pages of a mapping count as the process's memory, so values are read.
    buffer = np.memmap(path, dtype=np.uint8, mode="r").data
    module = _Table(buffer, _follow(buffer, 0)).table(1)
    tensors = {tensor.text(0): tensor for field in (0, 1) for tensor in module.tables(field)}
    places = {name: tensor.content(4) for name, tensor in tensors.items() if tensor.int32(3) == FLOAT}
    for name, shape in shapes.items():
        if name not in places or tensors[name].longs(2) != shape or places[name][1] != 4 * math.prod(shape):
            raise ArtifactError(f"{path} has no tensor {name} of shape {shape}; {REMEDY}")

    def read(name: str) -> FloatArray:
        shape = shapes[name]
        values = np.fromfile(path, dtype="<f4", count=math.prod(shape), offset=places[name][0])
        return values.astype(np.float32, copy=False).reshape(shape)

    return MadeOnDemand(tuple(shapes), read)


class _Table:
    """A table of the buffer, with fields by their schema number."""

    def __init__(self, buffer: memoryview, at: int) -> None:
        self._buffer = buffer
        self._at = at
        self._vtable = at - _unpack("<i", buffer, at)
        self._vtable_bytes = _unpack("<H", buffer, self._vtable)

    def table(self, field: int) -> _Table:
        return _Table(self._buffer, _follow(self._buffer, self._place(field)))

    def tables(self, field: int) -> Iterator[_Table]:
        begin, length = self._vector(field)
        for index in range(length):
            yield _Table(self._buffer, _follow(self._buffer, begin + 4 * index))

    def text(self, field: int) -> str:
        begin, length = self._vector(field)
        return str(self._slice(begin, length), "utf-8")

    def int32(self, field: int) -> int:
        return _unpack("<i", self._buffer, self._place(field))

    def longs(self, field: int) -> tuple[int, ...]:
        begin, length = self._vector(field)
        return struct.unpack_from(f"<{length}q", self._buffer, begin)

    def content(self, field: int) -> tuple[int, int]:
        """Where a vector of bytes begins, and how many there are."""
        begin, length = self._vector(field)
        self._slice(begin, length)
        return begin, length

    def _place(self, field: int) -> int:
        entry = 4 + 2 * field
        offset = _unpack("<H", self._buffer, self._vtable + entry) if entry < self._vtable_bytes else 0
        if offset == 0:
            raise ValueError(f"field {field} is missing")
        return self._at + offset

    def _vector(self, field: int) -> tuple[int, int]:
        """The position of the first element, and the number of elements."""
        at = _follow(self._buffer, self._place(field))
        return at + 4, _unpack("<I", self._buffer, at)

    def _slice(self, begin: int, length: int) -> memoryview:
        if begin + length > len(self._buffer):
            raise ValueError(f"{length} bytes at {begin} go beyond the end")
        return self._buffer[begin : begin + length]


def _follow(buffer: memoryview, at: int) -> int:
    return at + _unpack("<I", buffer, at)


def _unpack(form: str, buffer: memoryview, at: int) -> int:
    if at < 0:
        raise ValueError(f"place {at} is before the beginning")
    value: int = struct.unpack_from(form, buffer, at)[0]
    return value
