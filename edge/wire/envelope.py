"""The envelope of a frame: magic, header, sections, digest. frame.py defines the sections' content. No I/O.

A frame is, in this order (integers little-endian):

    magic      4 bytes   b"SEF2"
    packed     u32       bytes that the header takes in the frame
    unpacked   u32       bytes of the header itself; if both agree, it is not compressed
    header     msgpack   FrameHeader, inside zstd if compressed
    masks                Golomb-Rice codes: which entries of the weights are kept
    weights    zstd      the values of those entries, as byte planes
    others     zstd      all entries of all other tensors, as byte planes
    digest     32 bytes  SHA-256 of everything before it
"""

from __future__ import annotations

import enum
import hashlib
import math
import struct
from collections.abc import Mapping
from typing import Annotated

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.wire.codecs import CODECS, Codec

__all__ = [
    "DIGEST_BYTES",
    "MAGIC",
    "MAX_HEADER_BYTES",
    "FrameHeader",
    "Mask",
    "Other",
    "SectionReader",
    "Weight",
    "check_tensors",
    "decompress",
    "digests",
    "max_frame_bytes",
    "read_header",
    "seal",
    "sections",
]

MAGIC = b"SEF2"
DIGEST_BYTES = 32
PREFIX = struct.Struct("<4sII")
MAX_HEADER_BYTES = 1 << 20
PLAIN_HEADER_BYTES = 1 << 10
"""Headers up to this size stay uncompressed: there is little to gain, and people can read them."""
HEADER_LEVEL = 19
"""The slowest level is best at what layer names share, and still takes only a millisecond on a short header."""
MAX_WINDOW_BYTES = 1 << 23
"""Every zstd decoder must support this window; we refuse a section that asks for more memory."""
BASE_CHECK_BYTES = 8
FRAME_SLACK_BYTES = 2 << 20
"""Room for header and digest, and for zstd's overhead on incompressible bytes."""
# From zstd's format (RFC 8878): the block header, the block type that repeats one byte, the checksum at the end.
BLOCK_HEADER_BYTES = 3
REPEATED_BYTE = 1
CHECKSUM_BYTES = 4
HONEST_BLOCK_BYTES = 1 << 10
"""zstd fills blocks to 128 KiB unless told to end one; the block splitter of its slow levels stops far above this."""

MAX_NAME = 255
MAX_DIMENSIONS = 8
MAX_TENSORS = 16_384
# Limits on a header's claims, checked before we build or log anything from them.
Size = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]
Dimensions = Annotated[tuple[Size, ...], msgspec.Meta(max_length=MAX_DIMENSIONS)]


class Mask(enum.IntEnum):
    """What a weight's Golomb-Rice codes list."""

    ALL = 0
    """Nothing: every entry is kept."""
    KEPT = 1
    """The kept positions."""
    ZEROS = 2
    """The positions that are not kept: the shorter list in a dense weight."""
    DROPPED = 3
    """The base's non-zeros that are no longer kept, as ranks by magnitude among the base's non-zeros."""


class Weight(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A pruned tensor: a mask, and the kept values."""

    name: Name
    shape: Dimensions
    kept: Size
    mask: Mask
    parameter: Annotated[int, msgspec.Meta(ge=0, le=31)]
    """The parameter of the Golomb-Rice codes."""
    difference: bool
    """Whether values are relative to the base's; always true with a mask of dropped entries."""
    scale: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """The size of one step (float32), if the codec sends differences as steps (int8)."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class Other(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A tensor that is not pruned: bias, BatchNorm affine or running statistics. Travels whole and without loss."""

    name: Name
    shape: Dimensions
    difference: bool

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class FrameHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A frame's description of itself."""

    run: Name
    round: Size
    base_id: Name
    """The model that training started from, or the base of a difference; else a global model's own id."""
    base_check: Annotated[bytes, msgspec.Meta(max_length=BASE_CHECK_BYTES)]
    """Hash of the base values that the frame builds on; empty if it uses none."""
    codec: Codec
    """How the values of weights travel; all other tensors travel without loss."""
    weights: Annotated[tuple[Weight, ...], msgspec.Meta(max_length=MAX_TENSORS)]
    others: Annotated[tuple[Other, ...], msgspec.Meta(max_length=MAX_TENSORS)]
    mask_bytes: Size
    weight_bytes: Size
    other_bytes: Size

    @property
    def tensors(self) -> tuple[Weight | Other, ...]:
        """All tensors, in the order of their values."""
        return (*self.weights, *self.others)

    @property
    def entries(self) -> int:
        """The number of values in the frame: the kept ones of the weights, and all of the other tensors."""
        return sum(weight.kept for weight in self.weights) + sum(other.size for other in self.others)

    @property
    def needs_base(self) -> bool:
        """Whether decoding needs the model `base_id`."""
        return any(tensor.difference for tensor in self.tensors)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor, by name."""
        return {tensor.name: tensor.shape for tensor in self.tensors}


def seal(header: FrameHeader, *parts: bytes) -> bytes:
    """Join header and sections into one frame."""
    plain = packed = msgspec.msgpack.encode(header)
    if len(plain) > PLAIN_HEADER_BYTES:
        packed = min(plain, zstandard.ZstdCompressor(level=HEADER_LEVEL).compress(plain), key=len)
    body = b"".join((PREFIX.pack(MAGIC, len(packed), len(plain)), packed, *parts))
    return body + hashlib.sha256(body).digest()


def digests(frame: bytes) -> tuple[bytes, str]:
    """The digest that a frame should end in, and the SHA-256 of all of it in hex, for the price of one of them."""
    running = hashlib.sha256(memoryview(frame)[:-DIGEST_BYTES])
    own = running.digest()
    running.update(frame[-DIGEST_BYTES:])
    return own, running.hexdigest()


def read_header(frame: bytes, *, digest: bytes | None = None) -> FrameHeader:
    """Check the digest of a frame and read its header; decompresses no section.

    `digest` is the one it should end in, if the caller has computed it (`digests`).
    """
    if len(frame) < PREFIX.size + DIGEST_BYTES:
        raise FrameError(f"frame of {len(frame)} bytes is shorter than any frame can be; it was cut")
    magic, packed, unpacked = PREFIX.unpack_from(frame)
    if magic != MAGIC:
        raise FrameError(f"frame starts with {magic!r}, not {MAGIC!r}: not a frame, or of another version")
    body = memoryview(frame)[:-DIGEST_BYTES]
    if (digest or hashlib.sha256(body).digest()) != frame[-DIGEST_BYTES:]:
        raise FrameError("frame does not match its own digest; it was cut or altered on the way")
    if max(packed, unpacked) > MAX_HEADER_BYTES or packed > len(body) - PREFIX.size:
        raise FrameError(
            f"frame claims a header of {packed} bytes, {unpacked} unpacked; {MAX_HEADER_BYTES} are allowed"
        )
    content = bytes(body[PREFIX.size : PREFIX.size + packed])
    header = _decode_header(content if packed == unpacked else decompress(content, unpacked))
    claimed = PREFIX.size + packed + header.mask_bytes + header.weight_bytes + header.other_bytes
    if claimed != len(body):
        raise FrameError(f"frame sections add up to {claimed} bytes, the frame has {len(body)}")
    return header


def sections(frame: bytes, header: FrameHeader) -> tuple[memoryview, memoryview, memoryview]:
    """The masks, weights and others of a frame, given its header; copies nothing."""
    view = memoryview(frame)
    others = len(frame) - DIGEST_BYTES - header.other_bytes
    weights = others - header.weight_bytes
    masks = weights - header.mask_bytes
    return view[masks:weights], view[weights:others], view[others : len(frame) - DIGEST_BYTES]


def decompress(section: bytes, expected: int) -> bytes:
    """Exactly `expected` bytes, or FrameError; refuses a section that claims more before allocating memory."""
    content = np.empty(expected, dtype=np.uint8)
    SectionReader(section, expected).read(content)
    return content.tobytes()


class SectionReader:
    """Reads a compressed section piece by piece; raises FrameError unless it has exactly `expected` bytes.

    `planes` is how many blocks the encoder may have ended before they were full.
    """

    def __init__(self, section: bytes | memoryview, expected: int, *, planes: int = 1) -> None:
        if expected == 0:
            if section:
                raise FrameError(f"section of {len(section)} bytes, though the header implies none")
            return
        try:
            if zstandard.frame_content_size(section) != expected:
                raise FrameError(f"section does not declare the {expected} bytes that the header implies")
            # One more for the empty block that ends a section.
            allowed = expected // HONEST_BLOCK_BYTES + planes + 1
            if _compressed_bytes(section, allowed) != len(section):
                raise FrameError("section is cut, or has bytes after its end")
            decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
            self._stream = decompressor.stream_reader(section)
        except zstandard.ZstdError as error:
            raise FrameError(f"section cannot be decompressed: {error}") from error

    def read(self, into: NDArray[np.uint8]) -> None:
        """Fill the array with the next bytes."""
        filled = 0
        while filled < into.size:
            try:
                count = self._stream.readinto(into[filled:])
            except zstandard.ZstdError as error:
                raise FrameError(f"section cannot be decompressed: {error}") from error
            if count == 0:
                raise FrameError("section ends before the bytes that it declares")
            filled += count


def _compressed_bytes(section: bytes | memoryview, allowed: int) -> int:
    """The length of a section's first zstd frame, from its block headers; beyond the section if it is cut.

    A block can be empty and take just three bytes, so the walk raises FrameError after `allowed` blocks.
    """
    end = zstandard.frame_header_size(section)
    for _ in range(allowed):
        if end + BLOCK_HEADER_BYTES > len(section):
            return len(section) + 1
        header = int.from_bytes(section[end : end + BLOCK_HEADER_BYTES], "little")
        last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        end += BLOCK_HEADER_BYTES + (1 if kind == REPEATED_BYTE else size)
        if last:
            return end + (CHECKSUM_BYTES if zstandard.get_frame_parameters(section).has_checksum else 0)
    raise FrameError(f"section of {len(section)} bytes has more than the {allowed} blocks that its content can need")


def max_frame_bytes(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """The largest possible frame of a model with these tensors: all values and one mask bit per entry, uncompressed."""
    entries = sum(math.prod(shape) for shape in shapes.values())
    return 4 * entries + entries // 8 + entries // 64 + FRAME_SLACK_BYTES


def check_tensors(header: FrameHeader, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that a frame has each tensor of the receiver's model once, in its shape, and keeps no more than fits."""
    seen: set[str] = set()
    for tensor in header.tensors:
        expected = shapes.get(tensor.name)
        if expected is None or tensor.name in seen:
            raise FrameError(f"frame holds tensor {tensor.name!r}, which the model does not have or which came twice")
        if tensor.shape != expected:
            raise FrameError(f"frame holds {tensor.name} with shape {tensor.shape}, the model has {expected}")
        seen.add(tensor.name)
    for weight in header.weights:
        if weight.kept > weight.size or (weight.mask is Mask.ALL and weight.kept < weight.size):
            raise FrameError(f"frame keeps {weight.kept} entries of {weight.name}, which has {weight.size}")
        if not weight.difference and (weight.mask is Mask.DROPPED or CODECS[header.codec].needs_base):
            raise FrameError(f"frame has no base for {weight.name}, which cannot be read without one")
    absent = sorted(set(shapes) - seen)
    if absent:
        raise FrameError(f"frame lacks tensor {absent[0]} and {len(absent) - 1} more of the model's {len(shapes)}")


# Created before any thread starts: see edge/protocol/messages.py.
_HEADER_DECODER: msgspec.msgpack.Decoder[FrameHeader] = msgspec.msgpack.Decoder(FrameHeader)


def _decode_header(content: bytes) -> FrameHeader:
    try:
        return _HEADER_DECODER.decode(content)
    # Invalid UTF-8 and very deep nesting raise their own errors.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"frame header cannot be read: {error}") from error
