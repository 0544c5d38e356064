"""Named float32 tensors as bytes for a file of our own: residuals, interrupted jobs, the server optimizer's memory.

    content = pack_tensors(tensors, note=b"...")
    opened = open_tensors(content)          # checks magic, version and digest
    opened.note, opened.tensors(shapes)     # decodes each tensor when it is asked for

These bytes never travel; frames (frame.py) do. Values come back bit for bit. Zeros take a fraction of a bit, so a
tensor that is mostly zeros stays small. All numbers are little-endian:

    prefix     magic "SELT", u16 version, u32 length of the header
    header     msgpack: the note, and for each tensor its name, shape, mask and the lengths of its two parts
    tensors    for each one: its mask as Golomb-Rice codes, then the values it keeps as byte planes in zstd
    digest     SHA-256 of all of the above
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from sparsyedge.edge.errors import DamagedFileError, FrameError
from sparsyedge.edge.tensors import FloatArray, MadeOnDemand, Tensors
from sparsyedge.edge.wire import native_codec as native
from sparsyedge.edge.wire.codecs import CODECS, LOSSLESS
from sparsyedge.edge.wire.envelope import Mask, Weight
from sparsyedge.edge.wire.sparse_tensor import CodedWeight, bits_of, decode_mask, encode_weight

__all__ = ["LocalTensors", "Packer", "open_tensors", "pack_tensors"]

MAGIC = b"SELT"
VERSION = 1
PREFIX = struct.Struct("<4sHI")
DIGEST_BYTES = 32
WORD_BYTES = 4

# Trained values hold no repeats worth finding; a small table still finds runs of zeros (see frame.py).
ZSTD = zstandard.ZstdCompressionParameters.from_level(1, hash_log=6)


class _Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One tensor in the header."""

    name: str
    shape: tuple[int, ...]
    kept: int
    mask: Mask
    parameter: int
    """Of the mask's Golomb-Rice codes."""
    mask_bytes: int
    value_bytes: int

    @property
    def weight(self) -> Weight:
        """The entry as the mask decoder reads it."""
        return Weight(self.name, self.shape, self.kept, self.mask, self.parameter, False, 0.0)


class _Header(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    note: bytes
    entries: tuple[_Entry, ...]


_HEADER_DECODER: msgspec.msgpack.Decoder[_Header] = msgspec.msgpack.Decoder(_Header)


class Packer:
    """Packs one tensor after the other, in the order of their names."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self._parts: list[bytes] = []

    def add(self, coded: CodedWeight) -> None:
        """Pack a tensor that was encoded without a base and without loss."""
        codes, values, entry = coded.codes.tobytes(), _compress(coded.words), coded.entry
        lengths = len(codes), len(values)
        self._entries.append(_Entry(entry.name, entry.shape, entry.kept, entry.mask, entry.parameter, *lengths))
        self._parts += [codes, values]

    def content(self, *, note: bytes = b"") -> bytes:
        """The packed tensors, with a note for whoever reads them."""
        header = msgspec.msgpack.encode(_Header(note, tuple(self._entries)))
        body = b"".join((PREFIX.pack(MAGIC, VERSION, len(header)), header, *self._parts))
        return body + hashlib.sha256(body).digest()


def pack_tensors(tensors: Mapping[str, FloatArray], *, note: bytes = b"") -> bytes:
    """Pack the tensors, and a note for whoever reads them; asks for every tensor once."""
    packer = Packer()
    for name in sorted(tensors):
        packer.add(encode_weight(name, tensors[name], None, LOSSLESS))
    return packer.content(note=note)


def open_tensors(content: bytes) -> LocalTensors:
    """Open packed tensors; raises DamagedFileError where these are not whole, or of another version."""
    if len(content) < PREFIX.size + DIGEST_BYTES:
        raise DamagedFileError(f"{len(content)} bytes are too few for packed tensors; the file was cut")
    magic, version, length = PREFIX.unpack_from(content)
    if (magic, version) != (MAGIC, VERSION):
        raise DamagedFileError(
            f"packed tensors start with {magic!r}, version {version}; this version of sparsyedge reads {MAGIC!r}, "
            f"version {VERSION}"
        )
    body = memoryview(content)[:-DIGEST_BYTES]
    if hashlib.sha256(body).digest() != content[-DIGEST_BYTES:]:
        raise DamagedFileError("packed tensors do not match their digest; the file was cut or altered")
    try:
        header = _HEADER_DECODER.decode(body[PREFIX.size : PREFIX.size + length])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedFileError(f"the header of packed tensors cannot be read: {error}") from error
    return LocalTensors(header.note, header.entries, body[PREFIX.size + length :])


@dataclass(frozen=True)
class LocalTensors:
    """Packed tensors that passed their digest."""

    note: bytes
    entries: tuple[_Entry, ...]
    parts: memoryview

    def tensors(self, shapes: Mapping[str, tuple[int, ...]]) -> Tensors:
        """Return the tensors; each one stays packed until it is asked for.

        Raises DamagedFileError where names or shapes differ from these.
        """
        found = {entry.name: entry.shape for entry in self.entries}
        if found != dict(shapes):
            wrong = sorted(name for name in found.keys() | shapes.keys() if found.get(name) != shapes.get(name))
            raise DamagedFileError(
                f"packed tensors are not those of this model: {wrong[0]} has shape {found.get(wrong[0])}, "
                f"wanted is {shapes.get(wrong[0])}"
            )
        places, start = {}, 0
        for entry in self.entries:
            places[entry.name] = (entry, start)
            start += entry.mask_bytes + entry.value_bytes
        return MadeOnDemand(tuple(places), lambda name: self._decode(*places[name]))

    def _decode(self, entry: _Entry, start: int) -> FloatArray:
        middle = start + entry.mask_bytes
        codes = np.frombuffer(self.parts[start:middle], dtype=np.uint8)
        tensor = np.zeros(entry.shape, dtype=np.float32)
        bits = bits_of(tensor)
        try:
            mask, _ = decode_mask(entry.weight, codes, None)
            # The words of what is kept go to the tensor's end; expanding moves each one to its place.
            _decompress(self.parts[middle : middle + entry.value_bytes], bits[bits.size - entry.kept :])
        except (FrameError, zstandard.ZstdError) as error:
            raise DamagedFileError(f"packed tensor {entry.name} cannot be read: {error}") from error
        native.expand(bits, count=entry.kept, mask=mask, base=None, coding=CODECS[LOSSLESS].coding)
        return tensor


def _compress(words: NDArray[Any]) -> bytes:
    """Compress words as byte planes; each plane is a block with an entropy code of its own."""
    if not words.size:
        return b""
    planes = native.split_planes(words)
    stream = zstandard.ZstdCompressor(compression_params=ZSTD).compressobj(size=planes.size)
    parts = []
    for plane in planes:
        parts += [stream.compress(plane), stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)]
    return b"".join((*parts, stream.flush()))


def _decompress(section: memoryview, words: NDArray[np.uint32]) -> None:
    """Fill the words from a section of exactly as many."""
    if not words.size:
        return
    expected = WORD_BYTES * words.size
    if zstandard.frame_content_size(section) != expected:
        raise FrameError(f"its values do not declare {expected} bytes")
    planes = np.frombuffer(zstandard.decompress(section, expected), dtype=np.uint8).reshape(WORD_BYTES, words.size)
    for byte, plane in enumerate(planes):
        native.put_plane(plane, words, byte)
