"""The chunk protocol: sends a byte string in numbered chunks and reassembles it. No I/O.

A `Blob` gives the SHA-256 of the bytes and the chunk size. Chunk N travels on a topic that ends in `/N`:
`Topics.chunk` on the way down, where the broker retains it, and `Topics.upload` on the way up. An empty payload
withdraws a retained chunk. Receivers list missing chunks as half-open ranges, and check the hash of the whole.
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
    "check_hash",
    "chunk_bytes_within",
    "chunk_of",
    "cut",
    "is_cleared",
    "parse_index",
    "recut",
]

LARGE_CHUNK_BYTES = 256 * 1024
"""The chunk size for brokers without a packet limit."""
PACKET_OVERHEAD_BYTES = 1024
"""Upper bound for a packet's topic, properties and header."""
MAX_INDEX_DIGITS = len(str(MAX_BLOB_BYTES // MIN_CHUNK_BYTES))
"""Enough digits for the chunk count of any blob."""
CLEARED = b""
"""The payload that withdraws a retained chunk."""


# ---- cutting ---------------------------------------------------------------------------------------------------------


def chunk_bytes_within(packet_limit: int | None) -> int:
    """The chunk size for a broker with this packet limit in bytes; None means no limit."""
    if packet_limit is None:
        return LARGE_CHUNK_BYTES
    largest = (packet_limit - PACKET_OVERHEAD_BYTES) // 1024 * 1024
    return max(MIN_CHUNK_BYTES, min(LARGE_CHUNK_BYTES, largest))


def blob_of(content: bytes, *, chunk_bytes: int = CHUNK_BYTES) -> Blob:
    """The description that a receiver needs to fetch `content`."""
    return Blob(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content), chunk_bytes=chunk_bytes)


def recut(blob: Blob, chunk_bytes: int) -> Blob:
    """The same bytes in chunks of another size."""
    return msgspec.structs.replace(blob, chunk_bytes=chunk_bytes)


def chunk_of(content: bytes, blob: Blob, index: int) -> bytes:
    """The bytes of one chunk."""
    return content[index * blob.chunk_bytes : (index + 1) * blob.chunk_bytes]


def cut(content: bytes, blob: Blob, ranges: Iterable[tuple[int, int]] | None = None) -> Iterator[tuple[int, bytes]]:
    """Numbered chunks, one at a time: all, or those in the half-open ranges; skips numbers beyond the blob."""
    for start, stop in ((0, blob.chunks),) if ranges is None else ranges:
        for index in range(start, min(stop, blob.chunks)):
            yield index, chunk_of(content, blob, index)


# ---- receiving -------------------------------------------------------------------------------------------------------


def parse_index(level: str) -> int:
    """The chunk number in the last level of a topic; raises FrameError for anything but ASCII digits."""
    if not (level.isascii() and level.isdigit() and len(level) <= MAX_INDEX_DIGITS):
        raise FrameError(f"{level[:20]!r} is not the number of a chunk")
    return int(level)


def is_cleared(blob: Blob, payload: bytes) -> bool:
    """Whether a payload withdraws its chunk. The one chunk of an empty blob is empty, too, and does not."""
    return payload == CLEARED and blob.bytes > 0


class Assembly:
    """A blob under construction. Chunks may arrive in any order and more than once.

    It takes memory only as chunks arrive: announcing a large blob costs next to nothing.
    """

    def __init__(self, blob: Blob) -> None:
        self.blob = blob
        self._chunks: dict[int, bytes] = {}
        self._content: bytes | None = None
        self._is_checked = False
        self._have = bytearray(blob.chunks)
        self._absent = blob.chunks

    def put(self, index: int, chunk: bytes) -> bool:
        """Store a chunk; False if we already have it. Raises FrameError if it cannot belong to the blob."""
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
        """The first missing chunks as half-open ranges in order; by default as many as a grant holds."""
        ranges: list[tuple[int, int]] = []
        start = self._have.find(0)
        while start >= 0 and len(ranges) < limit:
            stop = self._have.find(1, start)
            stop = self.blob.chunks if stop < 0 else stop
            ranges.append((start, stop))
            start = self._have.find(0, stop)
        return tuple(ranges)

    def content(self) -> bytes:
        """The whole blob; raises FrameError if its hash is wrong. Joins and hashes it once."""
        content = self.joined()
        if not self._is_checked:
            check_hash(self.blob.sha256, hashlib.sha256(content).hexdigest())
            self._is_checked = True
        return content

    def joined(self) -> bytes:
        """The whole blob, for a caller who checks its hash with `check_hash`. Joins it once."""
        if not self.complete:
            raise FrameError(f"blob {self.blob.sha256[:12]} lacks {self._absent} of {self.blob.chunks} chunks")
        if self._content is None:
            self._content = b"".join(self._chunks[index] for index in range(self.blob.chunks))
            self._chunks.clear()
        return self._content


def check_hash(promised: str, found: str) -> None:
    """Raise FrameError if the SHA-256 of a blob is not the promised one."""
    if found != promised:
        raise FrameError(f"blob has SHA-256 {found[:12]}..., {promised[:12]}... was promised")
