"""Releases and orders: which wheels devices may install, and which device installs them now. No I/O.

Both travel sealed: as the text that was signed, beside its signature. So the signature covers every field, also those
that a reader does not know.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from sparsyedge.edge.config import Identifier
from sparsyedge.edge.protocol.messages import (
    CHUNK_BYTES,
    MAX_BLOB_BYTES,
    MAX_CHUNK_BYTES,
    MIN_CHUNK_BYTES,
    Blob,
    Message,
    Sha256,
)
from sparsyedge.edge.protocol.store_url import MAX_URL

__all__ = ["MAX_STATEMENT", "Action", "Order", "Release", "ReleaseFile", "Sealed", "WheelSet"]

MAX_STATEMENT = 128 * 1024
"""Characters of a signed statement."""
MAX_FILES = 100
MAX_SETS = 16
MAX_INSTALLED_BYTES = 1 << 40

Serial = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
UnixTime = Annotated[float, msgspec.Meta(ge=0, le=2**53)]
Version = Annotated[str, msgspec.Meta(pattern=r"^[0-9][0-9A-Za-z.+]{0,63}\Z")]
Action = Literal["install", "keep", "return", "halt"]


class Sealed(Message, frozen=True):
    """A signed statement: the text of a Release or an Order."""

    statement: Annotated[str, msgspec.Meta(max_length=MAX_STATEMENT)]
    signature: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{128})?\Z")] = ""
    """By the key that devices pin, Ed25519 in hex."""
    chunk_bytes: Annotated[int, msgspec.Meta(ge=MIN_CHUNK_BYTES, le=MAX_CHUNK_BYTES)] = CHUNK_BYTES
    """How a release's files are cut; not signed, since the files have hashes."""


class ReleaseFile(Message, frozen=True):
    """A wheel, or the lock file that pip installs by."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,199}\.(whl|lock)\Z")]
    sha256: Sha256
    bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_BLOB_BYTES)]

    def blob(self, chunk_bytes: int) -> Blob:
        """What to fetch for it."""
        return Blob(sha256=self.sha256, bytes=self.bytes, chunk_bytes=chunk_bytes)


class WheelSet(Message, frozen=True):
    """Everything that devices with one Python on one kind of processor install."""

    python: Annotated[str, msgspec.Meta(pattern=r"^3\.[0-9]{1,3}\Z")]
    machine: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_]{1,20}\Z")]
    """As `uname -m` says it."""
    files: Annotated[tuple[ReleaseFile, ...], msgspec.Meta(min_length=1, max_length=MAX_FILES)]
    installed_bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_INSTALLED_BYTES)]
    """What the wheels take unpacked."""


class Release(Message, frozen=True):
    """A version of sparsyedge for a fleet, with hash and length of every file."""

    fleet: Identifier
    version: Serial
    """Grows with everything signed for this fleet; a device takes none below the highest that it has seen."""
    software: Version
    issued_unix_s: UnixTime
    expires_unix_s: UnixTime
    sets: Annotated[tuple[WheelSet, ...], msgspec.Meta(min_length=1, max_length=MAX_SETS)]
    blobs: Annotated[str, msgspec.Meta(max_length=MAX_URL)] | UnsetType = UNSET
    """A folder on a web server that has the files, each under its SHA-256; checked when it is used."""

    @property
    def bundle(self) -> str:
        """The id of what is installed: the same for statements that differ only in version, dates and web store."""
        return hashlib.sha256(msgspec.json.encode((self.software, self.sets))).hexdigest()


class Order(Message, frozen=True):
    """What one device does about a release."""

    fleet: Identifier
    device: Identifier
    serial: Serial
    """Grows with every order; a device follows none below the highest that it has seen."""
    action: Action
    """Install it, keep it after the trial, return to what was there before, or leave it for now."""
    bundle: Sha256
    issued_unix_s: UnixTime
