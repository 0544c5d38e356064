"""The part of protobuf's wire format that ONNX files need.

A message is a sequence of fields. Each begins with a varint that holds its number and kind. Then comes a varint, four
or eight bytes, or a length and that many bytes. A nested message is bytes like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Field", "Malformed", "bytes_field", "fields", "head", "integer_field", "text_field"]

VARINT, EIGHT_BYTES, LENGTH_DELIMITED, FOUR_BYTES = 0, 1, 2, 5
VARINT_BITS = 7
MOST_VARINT_BYTES = 10
WORD = 1 << 64
MOST_FIELDS = 1_000_000
"""The most fields in one message; ResNet-18 has 200. Each costs time before we can check anything else."""


class Malformed(ValueError):
    """Bytes that are not a message, or not the expected one."""


@dataclass(frozen=True)
class Field:
    """One field, as a view of its message's bytes."""

    number: int
    value: int | memoryview
    raw: memoryview
    """The whole field with its head: copied into another message, it is the same field there."""

    def integer(self) -> int:
        """The value as protobuf's int64."""
        if not isinstance(self.value, int):
            raise Malformed(f"field {self.number} is not a number")
        return self.value - WORD if self.value >= WORD // 2 else self.value

    def content(self) -> memoryview:
        """The bytes of a text, a nested message or an array."""
        if isinstance(self.value, int):
            raise Malformed(f"field {self.number} is a number")
        return self.value

    def text(self) -> str:
        """The value as UTF-8."""
        try:
            return str(self.content(), "utf-8")
        except UnicodeDecodeError as error:
            raise Malformed(f"field {self.number} is not UTF-8") from error

    def integers(self) -> Iterator[int]:
        """The values of a repeated number, which may be packed into one field."""
        if isinstance(self.value, int):
            yield self.integer()
            return
        at = 0
        while at < len(self.value):
            value, at = _read_varint(self.value, at)
            yield value - WORD if value >= WORD // 2 else value


def fields(message: memoryview) -> Iterator[Field]:
    """The fields of a message in byte order; raises Malformed if the bytes are not a message."""
    at = count = 0
    while at < len(message):
        count += 1
        if count > MOST_FIELDS:
            raise Malformed(f"a message of more than {MOST_FIELDS:,} fields")
        begin = at
        key, at = _read_varint(message, at)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise Malformed(f"byte {begin} begins a field with number 0")
        value: int | memoryview
        if kind == VARINT:
            value, at = _read_varint(message, at)
        elif kind in (LENGTH_DELIMITED, EIGHT_BYTES, FOUR_BYTES):
            size, at = _read_varint(message, at) if kind == LENGTH_DELIMITED else (8 if kind == EIGHT_BYTES else 4, at)
            if size > len(message) - at:
                raise Malformed(f"field {number} at byte {begin} has {size} bytes, {len(message) - at} are left")
            value, at = message[at : at + size], at + size
        else:
            raise Malformed(f"field {number} at byte {begin} is of unknown kind {kind}")
        yield Field(number, value, message[begin:at])


def integer_field(number: int, value: int) -> bytes:
    """A field that holds an int64."""
    return _varint(number << 3 | VARINT) + _varint(value % WORD)


def bytes_field(number: int, content: bytes) -> bytes:
    """A field that holds a nested message."""
    return head(number, len(content)) + content


def text_field(number: int, text: str) -> bytes:
    """A field that holds text."""
    return bytes_field(number, text.encode())


def head(number: int, size: int) -> bytes:
    """The start of a field of that many bytes."""
    return _varint(number << 3 | LENGTH_DELIMITED) + _varint(size)


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    """The number at a byte, and the position after it."""
    value = 0
    for place in range(MOST_VARINT_BYTES):
        if at + place >= len(message):
            raise Malformed(f"ends in the middle of a number at byte {at}")
        byte = message[at + place]
        value |= (byte & 0x7F) << VARINT_BITS * place
        if byte < 0x80:
            return value % WORD, at + place + 1
    raise Malformed(f"byte {at} begins a number of more than {MOST_VARINT_BYTES} bytes")


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= VARINT_BITS
    return bytes([*encoded, value])
