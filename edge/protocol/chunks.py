"""Byte strings in chunks: cutting one up, and putting one together from chunks in any order. No I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.protocol.messages import CHUNK_BYTES, Blob

__all__ = ["Assembly", "blob_of", "chunk_of", "indices"]


def blob_of(content: bytes, *, chunk_bytes: int = CHUNK_BYTES) -> Blob:
    """What the receiver must know to fetch `content`."""
    return Blob(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content), chunk_bytes=chunk_bytes)


def chunk_of(content: bytes, blob: Blob, index: int) -> bytes:
    """The bytes of one chunk."""
    return content[index * blob.chunk_bytes : (index + 1) * blob.chunk_bytes]


def indices(ranges: Iterable[tuple[int, int]], blob: Blob) -> Iterable[int]:
    """The chunk numbers in half-open ranges, those of the blob only."""
    for start, stop in ranges:
        yield from range(start, min(stop, blob.chunks))


class Assembly:
    """A blob in the making: chunks are put if absent, so duplicates and reordering do no harm.

    Memory is taken as chunks arrive: a large blob that is only announced costs next to nothing.
    """

    def __init__(self, blob: Blob) -> None:
        self.blob = blob
        self._chunks: dict[int, bytes] = {}
        self._content: bytes | None = None
        self._have = bytearray(blob.chunks)
        self._absent = blob.chunks

    def put(self, index: int, chunk: bytes) -> bool:
        """Store a chunk; False where it was there already. Raises FrameError where it cannot be part of the blob."""
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

    def missing(self) -> tuple[tuple[int, int], ...]:
        """The chunks that have not arrived, as half-open ranges in order."""
        ranges: list[tuple[int, int]] = []
        start = self._have.find(0)
        while start >= 0:
            stop = self._have.find(1, start)
            stop = self.blob.chunks if stop < 0 else stop
            ranges.append((start, stop))
            start = self._have.find(0, stop)
        return tuple(ranges)

    def content(self) -> bytes:
        """The whole blob, checked against its hash; raises FrameError when it is not what was promised."""
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
