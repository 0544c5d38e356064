"""The ONNX messages in a model file: their field numbers, and how to read and write them.

Covers the part of onnx.proto that we use. Writes fields in order of number, as protobuf itself does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sparsyedge.edge.inference.protobuf import Malformed, bytes_field, fields, head, integer_field, text_field

__all__ = [
    "FLOAT",
    "INT16",
    "UINT8",
    "Graph",
    "Model",
    "Node",
    "Tensor",
    "ValueInfo",
    "metadata_entry",
    "node",
    "read_metadata_entry",
    "read_opset",
    "scalar",
    "tensor_head",
    "value_info",
]

# TensorProto.DataType
FLOAT, UINT8, INT16 = 1, 2, 5
# AttributeProto.AttributeType
INT, INTS = 2, 7


class Model:
    """Field numbers of ModelProto."""

    IR_VERSION = 1
    PRODUCER_NAME = 2
    PRODUCER_VERSION = 3
    GRAPH = 7
    OPSET_IMPORT = 8
    METADATA_PROPS = 14


class Graph:
    """Field numbers of GraphProto."""

    NODE = 1
    INITIALIZER = 5
    INPUT = 11
    OUTPUT = 12


@dataclass(frozen=True)
class Node:
    """A NodeProto: the op, its inputs and its outputs."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @classmethod
    def read(cls, message: memoryview) -> Node:
        inputs, outputs, op = [], [], ""
        for field in fields(message):
            if field.number == 1:
                inputs.append(field.text())
            elif field.number == 2:
                outputs.append(field.text())
            elif field.number == 4:
                op = field.text()
        return cls(op, tuple(inputs), tuple(outputs))


@dataclass(frozen=True)
class Tensor:
    """A TensorProto's description of its values."""

    name: str
    shape: tuple[int, ...]
    element: int

    @classmethod
    def read(cls, message: memoryview) -> Tensor:
        name, element = "", 0
        shape: list[int] = []
        for field in fields(message):
            if field.number == 1:
                shape.extend(field.integers())
            elif field.number == 2:
                element = field.integer()
            elif field.number == 8:
                name = field.text()
        return cls(name, tuple(shape), element)

    def without_values(self) -> bytes:
        """The message again, with its values left out."""
        dimensions = b"".join(integer_field(1, each) for each in self.shape)
        return dimensions + integer_field(2, self.element) + text_field(8, self.name)


@dataclass(frozen=True)
class ValueInfo:
    """The name, type and shape of a graph's input or output; a dimension may be a name instead of a size."""

    name: str
    shape: tuple[int | str, ...]
    element: int

    @classmethod
    def read(cls, message: memoryview) -> ValueInfo:
        name, element = "", 0
        shape: tuple[int | str, ...] = ()
        for field in fields(message):
            if field.number == 1:
                name = field.text()
            elif field.number == 2:
                tensor = _only(field.content(), 1)
                for part in fields(tensor):
                    if part.number == 1:
                        element = part.integer()
                    elif part.number == 2:
                        shape = tuple(_dimension(each.content()) for each in fields(part.content()) if each.number == 1)
        return cls(name, shape, element)


def _only(message: memoryview, number: int) -> memoryview:
    found = [field.content() for field in fields(message) if field.number == number]
    if len(found) != 1:
        raise Malformed(f"a message has {len(found)} fields of number {number}, not one")
    return found[0]


def _dimension(message: memoryview) -> int | str:
    size: int | str = ""
    for field in fields(message):
        if field.number == 1:
            size = field.integer()
        elif field.number == 2:
            size = field.text()
    return size


def read_metadata_entry(message: memoryview) -> tuple[str, str]:
    """The key and the value of a StringStringEntryProto."""
    texts = {field.number: field.text() for field in fields(message) if field.number in (1, 2)}
    return texts.get(1, ""), texts.get(2, "")


def read_opset(message: memoryview) -> tuple[str, int]:
    """The domain and the version of an OperatorSetIdProto."""
    domain, version = "", 0
    for field in fields(message):
        if field.number == 1:
            domain = field.text()
        elif field.number == 2:
            version = field.integer()
    return domain, version


def metadata_entry(key: str, value: str) -> bytes:
    """A StringStringEntryProto."""
    return text_field(1, key) + text_field(2, value)


def node(op: str, inputs: Sequence[str], output: str, **attributes: int | Sequence[int]) -> bytes:
    """A NodeProto of a standard op with one output, which also names the node."""
    encoded = [text_field(1, each) for each in inputs]
    encoded += [text_field(2, output), text_field(3, f"{output}/{op}"), text_field(4, op)]
    encoded += [bytes_field(5, _attribute(name, value)) for name, value in attributes.items()]
    return b"".join(encoded)


def _attribute(name: str, value: int | Sequence[int]) -> bytes:
    if isinstance(value, int):
        return text_field(1, name) + integer_field(3, value) + integer_field(20, INT)
    return text_field(1, name) + b"".join(integer_field(8, each) for each in value) + integer_field(20, INTS)


def value_info(name: str, shape: Sequence[int | str], element: int) -> bytes:
    """A ValueInfoProto of a tensor."""
    sizes = (text_field(2, size) if isinstance(size, str) else integer_field(1, size) for size in shape)
    dimensions = b"".join(bytes_field(1, size) for size in sizes)
    tensor = integer_field(1, element) + bytes_field(2, dimensions)
    return text_field(1, name) + bytes_field(2, bytes_field(1, tensor))


def tensor_head(name: str, shape: Sequence[int], size: int) -> bytes:
    """A float32 TensorProto up to its values, which take `size` bytes."""
    dimensions = b"".join(integer_field(1, each) for each in shape)
    return dimensions + integer_field(2, FLOAT) + text_field(8, name) + head(9, size)


def scalar(name: str, value: float) -> bytes:
    """A TensorProto of one float32."""
    return tensor_head(name, (), 4) + np.array(value, dtype="<f4").tobytes()
