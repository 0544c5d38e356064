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

import struct
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import numpy as np

from sparsyedge.edge.errors import ArtifactError, FrameError
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.tensors import FloatArray, State, model_id
from sparsyedge.edge.wire.envelope import MAGIC
from sparsyedge.edge.wire.frame import decode_frame, frame_of

__all__ = ["encode_checkpoint", "read_initial_state"]

IDENTIFIER = b"ODTC"
FLOAT = 1
FRAME_LABEL = "export"
"""What stands for the run in a checkpoint's frame, which belongs to none."""


def encode_checkpoint(state: Mapping[str, FloatArray], *, prunable: Collection[str]) -> bytes:
    """The state as the checkpoint of an export without onnxruntime-training's files."""
    return frame_of(state, run=FRAME_LABEL, round_number=0, base_id=model_id(state), prunable=prunable)


def read_initial_state(artifacts: Artifacts) -> State:
    """The checkpoint's parameters and statistics; raises ArtifactError if they do not match the manifest."""
    path = artifacts.path("checkpoint")
    manifest = artifacts.manifest
    tensors = _read(path, manifest.shapes)
    missing = [name for name, shape in manifest.shapes.items() if name not in tensors or tensors[name].shape != shape]
    if missing:
        raise ArtifactError(f"{path} has no tensor {missing[0]} of shape {manifest.shapes[missing[0]]}; {REMEDY}")
    state = {name: tensors[name] for name in manifest.shapes}
    if model_id(state) != manifest.initial_model:
        raise ArtifactError(
            f"{path} holds model {model_id(state)[:12]}, the manifest says {manifest.initial_model[:12]}; {REMEDY}"
        )
    return state


REMEDY = "run `sparsyedge export` again"


def _read(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> State:
    buffer = path.read_bytes()
    try:
        if buffer.startswith(MAGIC):
            return decode_frame(buffer, shapes).state
        if buffer[4:8] != IDENTIFIER:
            raise ArtifactError(f"{path} is not a checkpoint; {REMEDY}")
        module = _Table(buffer, _follow(buffer, 0)).table(1)
        tensors = {tensor.text(0): tensor for field in (0, 1) for tensor in module.tables(field)}
        return {name: _array(tensor) for name, tensor in tensors.items() if tensor.int32(3) == FLOAT}
    except (FrameError, struct.error, ValueError, IndexError) as error:
        raise ArtifactError(f"{path} cannot be read as a checkpoint: {error}; {REMEDY}") from error


class _Table:
    """A table of the buffer, with fields by their schema number."""

    def __init__(self, buffer: bytes, at: int) -> None:
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
        return self._slice(begin, length).decode("utf-8")

    def int32(self, field: int) -> int:
        return _unpack("<i", self._buffer, self._place(field))

    def longs(self, field: int) -> tuple[int, ...]:
        begin, length = self._vector(field)
        return struct.unpack_from(f"<{length}q", self._buffer, begin)

    def floats(self, field: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        begin, length = self._vector(field)
        return np.frombuffer(self._slice(begin, length), dtype="<f4").astype(np.float32)

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

    def _slice(self, begin: int, length: int) -> bytes:
        if begin + length > len(self._buffer):
            raise ValueError(f"{length} bytes at {begin} go beyond the end")
        return self._buffer[begin : begin + length]


def _array(tensor: _Table) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return tensor.floats(4).reshape(tensor.longs(2))


def _follow(buffer: bytes, at: int) -> int:
    return at + _unpack("<I", buffer, at)


def _unpack(form: str, buffer: bytes, at: int) -> int:
    if at < 0:
        raise ValueError(f"place {at} is before the beginning")
    value: int = struct.unpack_from(form, buffer, at)[0]
    return value
