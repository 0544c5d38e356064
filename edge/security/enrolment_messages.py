"""How a new device joins: the file it gets, its request, and the reply.

The operator gives a device one file, `sparsyedge-device.json`: its name, its coordinator's address, the authority it
trusts, and a token for one enrolment. `sparsyedge edge enrol` turns the file into an identity.
docs/explanation/security.md describes the file and the exchange.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from sparsyedge.edge.config import MAX_BROKERS, BrokerConfig, DataConfig, Identifier, Port
from sparsyedge.edge.errors import FrameError, SecurityError
from sparsyedge.edge.protocol.messages import Message, Text
from sparsyedge.edge.storage import write_atomically

__all__ = [
    "DEVICE_FILE_NAME",
    "MAX_REQUEST_BYTES",
    "RENEW_BEFORE_S",
    "DeviceFile",
    "EnrolReply",
    "EnrolRequest",
    "Enrolled",
    "NotEnrolled",
    "NotRenewed",
    "RenewalReply",
    "RenewalRequest",
    "Renewed",
    "decode_renewal",
    "entry_reply",
    "parse_device_file",
    "read_device_file",
    "token_sha256",
    "write_device_file",
]

DEVICE_FILE_NAME = "sparsyedge-device.json"
DEVICE_FILE_VERSION = 1
MAX_FILE_BYTES = 64 * 1024
MAX_UNIX_S = 253_402_300_799
"""The end of the year 9999, the last year that all calendar code supports."""
MAX_REQUEST_BYTES = 16 * 1024
"""An EnrolRequest is smaller than 10 KiB; its longest part is the certificate request, a Pem."""
RENEW_BEFORE_S = 180 * 86400.0
"""How long before its certificate ends a member asks for another: boards may be in a drawer for months."""

Pem = Annotated[str, msgspec.Meta(max_length=8192)]
Token = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{43}\Z")]
"""256 random bits in URL-safe base64."""
SigningKey = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
"""An Ed25519 public key in hex."""
Nonce = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]


class DeviceFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """sparsyedge-device.json: everything a new device needs to know. Secret as long as it holds a token."""

    version: Literal[1]
    device: Identifier
    fleet: Identifier
    host: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
    """The broker's host; its certificate must name it, unless `find` is there."""
    port: Port
    """The port for enrolled devices."""
    enrol_port: Port
    """The port for new devices."""
    ca: Pem
    """The certificate of the only authority that this device trusts."""
    signing_key: SigningKey
    """The key that must have signed all artifacts."""
    token: Token | None = None
    """Good for one enrolment of this device, which removes it from the file."""
    token_until: Annotated[int, msgspec.Meta(ge=0, le=MAX_UNIX_S)] | None = None
    """When the token expires, in seconds since 1970. For people; the coordinator uses its own record."""
    data: DataConfig | None = None
    """The device's data; without it, someone must write the device's config by hand."""
    others: Annotated[tuple[BrokerConfig, ...], msgspec.Meta(max_length=MAX_BROKERS - 1)] = ()
    """The other nodes of a cluster of brokers, all for new and enrolled devices alike."""
    find: bool = False
    """Whether the device looks for the broker on its network if `host` does not answer."""
    entry_certificate: Pem | None = None
    """A certificate for the enrolment alone, where the broker asks everybody for one; void with the token."""
    entry_key: Pem | None = None
    """The key of that certificate; the enrolment removes it from the file, with the token."""


class EnrolRequest(Message, frozen=True):
    """A new device asks for a certificate; `reply` is its connection's client id, where the answer goes."""

    device: Identifier
    token: Token
    csr: Pem
    reply: Nonce


class Enrolled(Message, frozen=True, tag="enrolled"):
    """The device is a member and this is its certificate; the same key always gets the same certificate."""

    device: Identifier
    certificate: Pem


class NotEnrolled(Message, frozen=True, tag="refused"):
    """The coordinator refuses the device and says why."""

    device: Identifier
    reason: str


EnrolReply = Enrolled | NotEnrolled


class RenewalRequest(Message, frozen=True):
    """A member asks for a certificate that lasts longer, for the key that it has: the request is signed with it."""

    device: Identifier
    csr: Pem
    authority: Annotated[int, msgspec.Meta(ge=1, le=2**53)] | msgspec.UnsetType = msgspec.UNSET
    """The number of the statement that the member follows: it takes certificates of the authority named there."""


class Renewed(Message, frozen=True, tag="renewed"):
    """The member's new certificate; the one it has stays good until it ends."""

    device: Identifier
    certificate: Pem


class NotRenewed(Message, frozen=True, tag="refused"):
    """The coordinator issues no new certificate and says why."""

    device: Identifier
    reason: Text


RenewalReply = Renewed | NotRenewed

_RENEWAL_DECODER: msgspec.json.Decoder[RenewalReply] = msgspec.json.Decoder(RenewalReply)


def decode_renewal(payload: bytes) -> RenewalReply:
    """Read the coordinator's answer to a renewal; raises FrameError if it is none."""
    try:
        return _RENEWAL_DECODER.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"not a valid answer to a renewal: {error}") from error


def token_sha256(token: str) -> str:
    """The hash of a token: a newcomer shows it to the broker, and the coordinator stores nothing else.

    Plain SHA-256 is enough for 256 random bits: there is nothing to guess.
    """
    return hashlib.sha256(token.encode()).hexdigest()


def entry_reply(token_hash: str) -> str:
    """Where the answer goes if the broker must know that beforehand; only the token's holder can tell."""
    return hashlib.sha256(f"reply {token_hash}".encode()).hexdigest()[:32]


def read_device_file(path: Path) -> DeviceFile:
    """Read the operator's file for this device; raises SecurityError that says what is wrong."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES)
    except OSError as error:
        raise SecurityError(f"cannot read the device file {path}: {error.strerror}; check the path") from error
    return parse_device_file(content, str(path))


def parse_device_file(content: bytes, name: str) -> DeviceFile:
    """Parse the content of such a file; errors call it `name`."""
    try:
        return msgspec.json.decode(content, type=DeviceFile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # The message names a key and never a value: the token is a value.
        raise SecurityError(
            f"{name} is not a valid {DEVICE_FILE_NAME}: {error}; make it with `sparsyedge coordinator token`"
        ) from error


def write_device_file(path: Path, device: DeviceFile) -> None:
    """Write the file, readable only by its owner."""
    content = msgspec.json.format(msgspec.json.encode(device), indent=2) + b"\n"
    write_atomically(path, content, private=True)
