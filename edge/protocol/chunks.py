"""The chunk protocol: how a byte string travels in numbered chunks and is put together again. No I/O.

A `Blob` names the bytes by their SHA-256 and says how large a chunk is. Chunk N travels on a topic that ends in `/N`:
`Topics.chunk` on the way down, where the broker retains it, and `Topics.upload` on the way up. An empty payload takes
a retained chunk back. Receivers name the chunks that they miss in half-open ranges, and check the hash of the whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import msgspec

from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.protocol.messages import CHUNK_BYTES, MAX_BLOB_BYTES, MAX_RANGES, MIN_CHUNK_BYTES, Blob

__all__ = [
    "CLEARED",
    "PACKET_OVERHEAD_BYTES",
    "Assembly",
    "blob_of",
    "chunk_bytes_within",
    "chunk_of",
    "cut",
    "is_cleared",
    "parse_index",
    "recut",
]

LARGE_CHUNK_BYTES = 256 * 1024
"""The chunk size for brokers that take packets of any size."""
PACKET_OVERHEAD_BYTES = 1024
"""Topic, properties and header of a packet take less."""
MAX_INDEX_DIGITS = len(str(MAX_BLOB_BYTES // MIN_CHUNK_BYTES))
"""No blob has more chunks than this can count."""
CLEARED = b""
"""The payload that takes a retained chunk back."""


# ---- cutting ---------------------------------------------------------------------------------------------------------


def chunk_bytes_within(packet_limit: int | None) -> int:
    """The chunk size for a broker that takes packets of `packet_limit` bytes, or of any size if that is None."""
    if packet_limit is None:
        return LARGE_CHUNK_BYTES
    largest = (packet_limit - PACKET_OVERHEAD_BYTES) // 1024 * 1024
    return max(MIN_CHUNK_BYTES, min(LARGE_CHUNK_BYTES, largest))


def blob_of(content: bytes, *, chunk_bytes: int = CHUNK_BYTES) -> Blob:
    """What a receiver must know to fetch `content`."""
    return Blob(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content), chunk_bytes=chunk_bytes)


def recut(blob: Blob, chunk_bytes: int) -> Blob:
    """The same bytes in chunks of another size."""
    return msgspec.structs.replace(blob, chunk_bytes=chunk_bytes)


def chunk_of(content: bytes, blob: Blob, index: int) -> bytes:
    """The bytes of one chunk."""
    return content[index * blob.chunk_bytes : (index + 1) * blob.chunk_bytes]


def cut(content: bytes, blob: Blob, ranges: Iterable[tuple[int, int]] | None = None) -> Iterator[tuple[int, bytes]]:
    """Numbered chunks, one at a time: those in half-open ranges as far as the blob has them, or all."""
    for start, stop in ((0, blob.chunks),) if ranges is None else ranges:
        for index in range(start, min(stop, blob.chunks)):
            yield index, chunk_of(content, blob, index)


# ---- receiving -------------------------------------------------------------------------------------------------------


def parse_index(level: str) -> int:
    """The number of a chunk, from the last level of its topic; raises FrameError for anything but ASCII digits."""
    if not (level.isascii() and level.isdigit() and len(level) <= MAX_INDEX_DIGITS):
        raise FrameError(f"{level[:20]!r} is not the number of a chunk")
    return int(level)


def is_cleared(blob: Blob, payload: bytes) -> bool:
    """Whether a payload takes its chunk back; the one chunk of an empty blob is empty, too."""
    return payload == CLEARED and blob.bytes > 0


class Assembly:
    """A blob in the making. Chunks may come in any order and more than once.

    It takes memory as chunks arrive, so a large blob that is only announced costs next to nothing.
    """

    def __init__(self, blob: Blob) -> None:
        self.blob = blob
        self._chunks: dict[int, bytes] = {}
        self._content: bytes | None = None
        self._have = bytearray(blob.chunks)
        self._absent = blob.chunks

    def put(self, index: int, chunk: bytes) -> bool:
        """Store a chunk; False if it was there already. Raises FrameError if it cannot be part of the blob."""
        if not 0 <= index < self.blob.chunks:
            raise FrameError(f"chunk {index} of blob {self.blob.sha256[:12]}, which has {self.blob.chunks}")
        start = index * self.blob.chunk_bytes
        expected = min(self.blob.chunk_bytes, self.blob.bytes - start)
        if len(chunk) != expected:
            raise FrameError(f"chunk {index} of blob {self.blob.sha256[:12]} has {len(chunk)} bytes, not {expected}")
        if self._have[index]:
            return False
        self._chunks[index] = chunk
        self._have[index] = 1
        self._absent -= 1
        return True

    @property
    def complete(self) -> bool:
        return self._absent == 0

    def missing(self, limit: int = MAX_RANGES) -> tuple[tuple[int, int], ...]:
        """The first chunks that have not arrived, as half-open ranges in order; by default as many as a grant holds."""
        ranges: list[tuple[int, int]] = []
        start = self._have.find(0)
        while start >= 0 and len(ranges) < limit:
            stop = self._have.find(1, start)
            stop = self.blob.chunks if stop < 0 else stop
            ranges.append((start, stop))
            start = self._have.find(0, stop)
        return tuple(ranges)

    def content(self) -> bytes:
        """The whole blob; raises FrameError if its hash is not what was promised. Joins and hashes it once."""
        if not self.complete:
            raise FrameError(f"blob {self.blob.sha256[:12]} lacks {self._absent} of {self.blob.chunks} chunks")
        if self._content is None:
            content = b"".join(self._chunks[index] for index in range(self.blob.chunks))
            found = hashlib.sha256(content).hexdigest()
            if found != self.blob.sha256:
                raise FrameError(f"blob has SHA-256 {found[:12]}..., {self.blob.sha256[:12]}... was promised")
            self._content = content
            self._chunks.clear()
        return self._content
