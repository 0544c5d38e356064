"""An ONNX model as bytes, weight by weight: protobuf itself would hold every weight three times to write it once.

A message on the wire is its fields one after the other, and one that is nested begins with its length. So a file is the
model without its weights, cut in two where they belong, and the weights in between. The bytes are protobuf's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from sparsyedge.edge.tensors import FloatArray

__all__ = ["WeightPiece", "pieces_of"]

LENGTH_DELIMITED = 2
VARINT_BITS = 7


@dataclass(frozen=True)
class WeightPiece:
    """An initializer of float32, whose values are asked for when they are written."""

    name: str
    shape: tuple[int, ...]
    values: Callable[[], FloatArray]

    @property
    def _head(self) -> bytes:
        described = onnx.TensorProto(name=self.name, dims=self.shape, data_type=onnx.TensorProto.FLOAT)
        size = 4 * int(np.prod(self.shape, dtype=np.int64))
        return _bytes_of(described) + _key(onnx.TensorProto.RAW_DATA_FIELD_NUMBER, size)

    @property
    def size(self) -> int:
        """Bytes of the message."""
        return len(self._head) + 4 * int(np.prod(self.shape, dtype=np.int64))

    def pieces(self) -> Iterator[bytes | memoryview]:
        yield self._head
        values = np.ascontiguousarray(self.values(), dtype="<f4")
        if values.shape != self.shape:
            raise ValueError(f"{self.name} has shape {values.shape}, {self.shape} was announced")
        yield values.reshape(-1).view(np.uint8).data


def pieces_of(model: onnx.ModelProto, weights: Sequence[WeightPiece]) -> Iterator[bytes | memoryview]:
    """The bytes of the model with these initializers in front of its own; one weight is in memory at a time."""
    field = onnx.GraphProto.INITIALIZER_FIELD_NUMBER
    model_head, model_tail = _around(model, onnx.ModelProto.GRAPH_FIELD_NUMBER)
    graph_head, graph_tail = _around(model.graph, field, keep=True)
    inside = len(graph_head) + len(graph_tail) + sum(len(_key(field, each.size)) + each.size for each in weights)
    yield model_head + _key(onnx.ModelProto.GRAPH_FIELD_NUMBER, inside) + graph_head
    for weight in weights:
        yield _key(field, weight.size)
        yield from weight.pieces()
    yield graph_tail + model_tail


def _around(message: Any, number: int, *, keep: bool = False) -> tuple[bytes, bytes]:
    """The fields before and after one, as bytes; `keep` leaves it among those after."""
    return (
        _part(message, lambda field: field < number),
        _part(message, lambda field: field >= number if keep else field > number),
    )


def _part(message: Any, wanted: Callable[[int], bool]) -> bytes:
    """The bytes of those fields of a message whose numbers are wanted."""
    part = message.__class__()
    part.CopyFrom(message)
    for field, _ in part.ListFields():
        if not wanted(field.number):
            part.ClearField(field.name)
    return _bytes_of(part)


def _bytes_of(message: Any) -> bytes:
    return bytes(message.SerializeToString(deterministic=True))


def _key(number: int, size: int) -> bytes:
    """What comes before the content of a field: its number and its length."""
    return _varint(number << 3 | LENGTH_DELIMITED) + _varint(size)


def _varint(value: int) -> bytes:
    low = value & (1 << VARINT_BITS) - 1
    high = value >> VARINT_BITS
    return bytes([low]) if high == 0 else bytes([low | 1 << VARINT_BITS]) + _varint(high)
