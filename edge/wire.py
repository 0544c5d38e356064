"""Frames: a model's state as bytes, without its zeros. No I/O.

A frame is, in this order (integers little-endian):

    magic     4 bytes   b"SEF1"
    length    u32       of the header
    header    msgpack   FrameHeader: who, which round, and one entry per tensor
    masks     zstd      one bitmap per tensor that has zeros, bit i = entry i is not +0.0, each padded to a whole byte
    values    zstd      the float32 values that are not zero, tensor after tensor, as four byte planes
    digest    32 bytes  SHA-256 of everything before it

The mask travels explicitly, so a value that happens to be zero keeps its place. Byte planes put the exponents side by
side, where zstd finds what they share. Everything that a header claims is checked against the receiver's own table of
shapes before memory is taken for it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.tensors import FloatArray, State

__all__ = ["MAGIC", "Frame", "FrameHeader", "TensorEntry", "decode_frame", "encode_frame", "read_header"]

MAGIC = b"SEF1"
DIGEST_BYTES = 32
PREFIX = struct.Struct("<4sI")
MAX_HEADER_BYTES = 1 << 20
ZSTD_LEVEL = 3
MAX_WINDOW_BYTES = 1 << 23
"""What any zstd decoder must offer; a section that asks for more memory is refused."""

Size = Annotated[int, msgspec.Meta(ge=0)]


class TensorEntry(msgspec.Struct, frozen=True, array_like=True):
    """One tensor of a frame."""

    name: str
    shape: tuple[Size, ...]
    kept: Size
    """How many entries travel; equal to the tensor's size where it has no mask."""


class FrameHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What a frame says about itself."""

    run: str
    round: Size
    base: str
    """The model id that training started from; for a global model, its own id."""
    tensors: tuple[TensorEntry, ...]
    mask_bytes: Size
    value_bytes: Size


class Frame(msgspec.Struct, frozen=True):
    """A decoded frame."""

    header: FrameHeader
    state: State


def encode_frame(state: Mapping[str, FloatArray], *, run: str, round_number: int, base: str) -> bytes:
    """The state as one frame; the same state always gives the same bytes."""
    entries, masks, values = [], [], []
    for name in sorted(state):
        flat = np.ascontiguousarray(state[name], dtype="<f4").reshape(-1)
        # By bits, not by value: a negative zero is kept, so the receiver's state has the hash of the sender's.
        mask = flat.view("<u4") != 0
        kept = int(np.count_nonzero(mask))
        entries.append(TensorEntry(name, state[name].shape, kept))
        if kept < flat.size:
            masks.append(np.packbits(mask, bitorder="little").tobytes())
            flat = flat[mask]
        values.append(flat)
    mask_section = _compress(b"".join(masks))
    value_section = _compress(_byte_planes(values))
    header = FrameHeader(
        run=run,
        round=round_number,
        base=base,
        tensors=tuple(entries),
        mask_bytes=len(mask_section),
        value_bytes=len(value_section),
    )
    packed = msgspec.msgpack.encode(header)
    body = PREFIX.pack(MAGIC, len(packed)) + packed + mask_section + value_section
    return body + hashlib.sha256(body).digest()


def read_header(frame: bytes) -> FrameHeader:
    """The header of a frame whose digest is right; nothing is decompressed."""
    if len(frame) < PREFIX.size + DIGEST_BYTES:
        raise FrameError(f"frame of {len(frame)} bytes is shorter than any frame can be; it was cut")
    body, digest = frame[:-DIGEST_BYTES], frame[-DIGEST_BYTES:]
    magic, header_bytes = PREFIX.unpack_from(body)
    if magic != MAGIC:
        raise FrameError(f"frame starts with {magic!r}, not {MAGIC!r}: not a frame, or of another version")
    if hashlib.sha256(body).digest() != digest:
        raise FrameError("frame does not match its own digest; it was cut or altered on the way")
    if header_bytes > min(MAX_HEADER_BYTES, len(body) - PREFIX.size):
        raise FrameError(f"frame claims a header of {header_bytes} bytes, at most {MAX_HEADER_BYTES} are allowed")
    try:
        header = msgspec.msgpack.decode(body[PREFIX.size : PREFIX.size + header_bytes], type=FrameHeader)
    # Text that is not UTF-8 and nesting that exhausts the stack raise errors of their own.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"frame header cannot be read: {error}") from error
    claimed = PREFIX.size + header_bytes + header.mask_bytes + header.value_bytes
    if claimed != len(body):
        raise FrameError(f"frame sections add up to {claimed} bytes, the frame has {len(body)}")
    return header


def decode_frame(frame: bytes, shapes: Mapping[str, tuple[int, ...]]) -> Frame:
    """The state in a frame, which must hold exactly the tensors of `shapes`; raises FrameError for anything else."""
    header = read_header(frame)
    _check_tensors(header.tensors, shapes)
    end = len(frame) - DIGEST_BYTES
    value_section = frame[end - header.value_bytes : end]
    mask_section = frame[end - header.value_bytes - header.mask_bytes : end - header.value_bytes]
    sizes = [int(np.prod(entry.shape, dtype=np.int64)) for entry in header.tensors]
    masked = [entry.kept < size for entry, size in zip(header.tensors, sizes, strict=True)]
    mask_total = sum(-(-size // 8) for size, has_mask in zip(sizes, masked, strict=True) if has_mask)
    value_total = sum(entry.kept for entry in header.tensors)
    masks = np.frombuffer(_decompress(mask_section, mask_total), dtype=np.uint8)
    values = _from_byte_planes(_decompress(value_section, 4 * value_total))
    return Frame(header, _scatter(header.tensors, sizes, masks, values))


def _check_tensors(entries: Iterable[TensorEntry], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """A frame must name each expected tensor once, with its shape, and keep no more entries than it has."""
    seen: set[str] = set()
    for entry in entries:
        expected = shapes.get(entry.name)
        if expected is None or entry.name in seen:
            raise FrameError(f"frame holds tensor {entry.name!r}, which the model does not have or which came twice")
        if entry.shape != expected:
            raise FrameError(f"frame holds {entry.name} with shape {entry.shape}, the model has {expected}")
        size = int(np.prod(expected, dtype=np.int64))
        if entry.kept > size:
            raise FrameError(f"frame keeps {entry.kept} entries of {entry.name}, which has {size}")
        seen.add(entry.name)
    absent = sorted(set(shapes) - seen)
    if absent:
        raise FrameError(f"frame lacks tensor {absent[0]} and {len(absent) - 1} more of the model's {len(shapes)}")


def _scatter(
    entries: Iterable[TensorEntry], sizes: Iterable[int], masks: NDArray[np.uint8], values: FloatArray
) -> State:
    """Put the kept values at the places that their masks name."""
    state: State = {}
    mask_at = value_at = 0
    for entry, size in zip(entries, sizes, strict=True):
        kept = values[value_at : value_at + entry.kept]
        value_at += entry.kept
        if entry.kept == size:
            state[entry.name] = kept.reshape(entry.shape).copy()
            continue
        width = -(-size // 8)
        mask = np.unpackbits(masks[mask_at : mask_at + width], count=size, bitorder="little").view(np.bool_)
        mask_at += width
        found = int(np.count_nonzero(mask))
        if found != entry.kept:
            raise FrameError(f"mask of {entry.name} keeps {found} entries, its header says {entry.kept}")
        tensor = np.zeros(size, dtype=np.float32)
        tensor[mask] = kept
        state[entry.name] = tensor.reshape(entry.shape)
    return state


def _byte_planes(values: list[NDArray[np.float32]]) -> bytes:
    flat = np.concatenate(values) if values else np.zeros(0, dtype="<f4")
    return flat.view(np.uint8).reshape(-1, 4).T.tobytes()


def _from_byte_planes(planes: bytes) -> FloatArray:
    columns = np.frombuffer(planes, dtype=np.uint8).reshape(4, -1)
    return np.ascontiguousarray(columns.T).view("<f4").reshape(-1)


def _compress(section: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_content_size=True).compress(section)


def _decompress(section: bytes, expected: int) -> bytes:
    """Exactly `expected` bytes, or FrameError; a section that claims more is refused before memory is taken for it."""
    try:
        if zstandard.frame_content_size(section) != expected:
            raise FrameError(f"section does not declare the {expected} bytes that the header implies")
        decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
        return decompressor.decompress(section, max_output_size=expected, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise FrameError(f"section cannot be decompressed: {error}") from error
