"""How a new device becomes a member: what it is given, what it asks, what it is answered.

The operator gives a device one file, `sparsyedge-device.json`: who it is, where its coordinator is, whom it trusts, and
a token that is good for one enrolment. `sparsyedge edge enrol` turns the file into an identity.
docs/explanation/security.md describes the file and the exchange.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from sparsyedge.edge.config import DataConfig, Identifier, Port
from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.protocol.messages import Message
from sparsyedge.edge.storage import write_atomically

__all__ = [
    "DEVICE_FILE_NAME",
    "MAX_REQUEST_BYTES",
    "DeviceFile",
    "EnrolReply",
    "EnrolRequest",
    "Enrolled",
    "NotEnrolled",
    "parse_device_file",
    "read_device_file",
    "token_sha256",
    "write_device_file",
]

DEVICE_FILE_NAME = "sparsyedge-device.json"
DEVICE_FILE_VERSION = 1
MAX_FILE_BYTES = 64 * 1024
MAX_UNIX_S = 253_402_300_799
"""The end of the year 9999, the last that calendars agree about."""
MAX_REQUEST_BYTES = 16 * 1024
"""An EnrolRequest is smaller than 10 KiB: its certificate request is the longest part, and a Pem."""

Pem = Annotated[str, msgspec.Meta(max_length=8192)]
Token = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{43}\Z")]
"""256 random bits in URL-safe base64."""
SigningKey = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
"""An Ed25519 public key in hex."""
Nonce = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]


class DeviceFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """sparsyedge-device.json: everything that a new device must be told; a secret while it has its token."""

    version: Literal[1]
    device: Identifier
    fleet: Identifier
    host: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
    """Where the broker is; its certificate must name this host."""
    port: Port
    """Of the listener for enrolled devices."""
    enrol_port: Port
    """Of the listener that takes new ones."""
    ca: Pem
    """The certificate of the authority that this device trusts, and no other."""
    signing_key: SigningKey
    """What artifacts must be signed with."""
    token: Token | None = None
    """Good for one enrolment of this device; taken out of the file by the enrolment."""
    token_until: Annotated[int, msgspec.Meta(ge=0, le=MAX_UNIX_S)] | None = None
    """When the token expires, in seconds since 1970, for whoever handles the file; the coordinator goes by its own."""
    data: DataConfig | None = None
    """What the device trains on; without it somebody writes the device's config."""


class EnrolRequest(Message, frozen=True):
    """A new device asks for a certificate; `reply` is the client id of its connection, which its answer is sent to."""

    device: Identifier
    token: Token
    csr: Pem
    reply: Nonce


class Enrolled(Message, frozen=True, tag="enrolled"):
    """The device is a member and this is its certificate; asked again with the same key, the same one is given."""

    device: Identifier
    certificate: Pem


class NotEnrolled(Message, frozen=True, tag="refused"):
    """The device is not taken, and why."""

    device: Identifier
    reason: str


EnrolReply = Enrolled | NotEnrolled


def token_sha256(token: str) -> str:
    """What a newcomer shows the broker for its token, and all that the coordinator keeps of it.

    Plain SHA-256 is enough for 256 random bits: there is nothing to guess.
    """
    return hashlib.sha256(token.encode()).hexdigest()


def read_device_file(path: Path) -> DeviceFile:
    """The file that the operator made for this device; raises SecurityError that says what does not fit."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES)
    except OSError as error:
        raise SecurityError(f"cannot read the device file {path}: {error.strerror}; check the path") from error
    return parse_device_file(content, str(path))


def parse_device_file(content: bytes, name: str) -> DeviceFile:
    """The same of a file's content, called `name` in the error."""
    try:
        return msgspec.json.decode(content, type=DeviceFile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # The message names a key and never a value: the token is one.
        raise SecurityError(
            f"{name} is not a valid {DEVICE_FILE_NAME}: {error}; make it with `sparsyedge coordinator token`"
        ) from error


def write_device_file(path: Path, device: DeviceFile) -> None:
    """Write the file, readable by its owner alone."""
    content = msgspec.json.format(msgspec.json.encode(device), indent=2) + b"\n"
    write_atomically(path, content, private=True)
