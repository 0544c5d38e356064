"""How a fleet's authority is replaced: a statement by a key that devices trust names whom they trust from now on.

    begin    two authorities, the next one first   signed by the present key   devices trust both
    abort    the same two, the present one first   signed by the present key   devices trust both
    finish   one authority                         signed by its own key       devices forget the other

The first authority of a statement is the one that members shall be certified by. Statements are numbered, and a device
takes none that is older than the last it took: what it once forgot cannot come back.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sparsyedge.edge.config import Identifier
from sparsyedge.edge.errors import FrameError, SecurityError
from sparsyedge.edge.protocol.messages import Message, decode, encode
from sparsyedge.edge.security.enrolment_messages import Pem, SigningKey

__all__ = [
    "MAX_PAYLOAD_BYTES",
    "SealedSuccession",
    "Succession",
    "TrustRecord",
    "TrustedAuthority",
    "follow_statement",
    "judge",
    "seal",
]

# Prefixes for the signed bytes: no other signature by these keys can pass for one of these.
SUCCESSION_CONTEXT = b"sparsyedge succession 1\n"
FOLLOW_CONTEXT = b"sparsyedge follows 1\n"
MAX_STATEMENT = 20 * 1024
MAX_PAYLOAD_BYTES = 24 * 1024
"""Two certificates take less than 2 KiB; more than this is looked at by nobody."""
BEGIN_PEM = "-----BEGIN CERTIFICATE-----"

Number = Annotated[int, msgspec.Meta(ge=1, le=2**53)]


class TrustedAuthority(Message, frozen=True):
    """An authority as devices pin it: what certifies brokers and members, and what signs tasks and artifacts."""

    ca: Pem
    signing_key: SigningKey


Authorities = Annotated[tuple[TrustedAuthority, ...], msgspec.Meta(min_length=1, max_length=2)]


class Succession(Message, frozen=True):
    """Whom the devices of a fleet trust from now on; the first certifies them."""

    fleet: Identifier
    number: Number
    """Higher than that of every statement before."""
    authorities: Authorities


class SealedSuccession(Message, frozen=True):
    """A signed statement: the text of a Succession."""

    statement: Annotated[str, msgspec.Meta(max_length=MAX_STATEMENT)]
    signature: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{128}\Z")]
    """Ed25519, in hex."""


class TrustRecord(Message, frozen=True):
    """Whom a device trusts, and by which statement; 0 is the file that it enrolled with."""

    number: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    authorities: Authorities


def seal(statement: Succession, key: Ed25519PrivateKey) -> bytes:
    """The message that tells devices of the statement."""
    text = encode(statement)
    return encode(SealedSuccession(statement=text.decode(), signature=key.sign(SUCCESSION_CONTEXT + text).hex()))


def judge(payload: bytes, record: TrustRecord, *, fleet: str) -> TrustRecord:
    """Whom the device trusts after this message: the record itself if that is what it says already.

    Raises SecurityError, with the reason, for whatever a device must not follow.
    """
    signer, statement = _open(payload, record)
    if statement.fleet != fleet:
        raise SecurityError(f"it is for fleet {statement.fleet}, this device is of fleet {fleet}")
    if statement.number < record.number:
        raise SecurityError(
            f"it has number {statement.number}, and number {record.number} was followed: it is an old one"
        )
    said = TrustRecord(number=statement.number, authorities=statement.authorities)
    if statement.number == record.number:
        if said != record:
            raise SecurityError(f"it says something else than the statement of the same number, {record.number}")
        return record
    keys = [authority.signing_key for authority in statement.authorities]
    if signer not in keys:
        raise SecurityError("it drops the authority that signed it before another was trusted beside it")
    if len(keys) == 1 and statement.authorities[0] not in record.authorities:
        raise SecurityError("it names a single authority that this device does not trust yet")
    if len(keys) == 2 and keys[0] == keys[1]:
        raise SecurityError("it names the same signing key twice")
    for authority in statement.authorities:
        if authority not in record.authorities:
            _check_ca(authority.ca)
    return said


def follow_statement(*, fleet: str, device: str, number: int, serial: str) -> bytes:
    """The bytes a device signs to say that it trusts statement `number` and holds certificate `serial` (hex)."""
    return FOLLOW_CONTEXT + msgspec.json.encode((fleet, device, number, serial))


def _open(payload: bytes, record: TrustRecord) -> tuple[str, Succession]:
    """The statement in a message and the trusted key that signed it; nothing is parsed that nobody signed."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise SecurityError(f"it has {len(payload)} bytes, allowed are {MAX_PAYLOAD_BYTES}")
    try:
        sealed = decode(payload, SealedSuccession)
    except FrameError as error:
        raise SecurityError(f"it cannot be read: {error}") from error
    text = sealed.statement.encode("utf-8", "replace")
    for authority in record.authorities:
        try:
            key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(authority.signing_key))
            key.verify(bytes.fromhex(sealed.signature), SUCCESSION_CONTEXT + text)
        except (InvalidSignature, ValueError):
            continue
        try:
            return authority.signing_key, decode(text, Succession)
        except FrameError as error:
            raise SecurityError(f"it is signed but cannot be read: {error}") from error
    trusted = " or ".join(f"{authority.signing_key[:12]}..." for authority in record.authorities)
    raise SecurityError(f"it is not signed with the fleet's key {trusted}: it was altered, or is another fleet's")


def _check_ca(pem: str) -> None:
    """Raise SecurityError unless the text is one certificate of an authority with a P-256 key."""
    try:
        certificate = x509.load_pem_x509_certificate(pem.encode())
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        public = certificate.public_key()
        certificate.verify_directly_issued_by(certificate)
    # The library's errors share no base class.
    except Exception as error:
        raise SecurityError("the certificate of its authority cannot be read") from error
    is_p256 = isinstance(public, ec.EllipticCurvePublicKey) and public.curve.name == "secp256r1"
    if not constraints.ca or not is_p256 or pem.count(BEGIN_PEM) != 1:
        raise SecurityError("the certificate of its authority is not one P-256 certificate that may issue others")
