"""Who has followed the fleet to its next authority: what devices say of it, checked, and the count for the operator."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Literal

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.authority.ledger import Ledger
from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.protocol.messages import Follows
from sparsyedge.edge.security.succession import follow_statement
from sparsyedge.edge.text import one_line

__all__ = ["Absent", "Followers", "Headcount", "count_heads", "holds_next", "issued_by"]

log = logging.getLogger(__name__)

MAX_STATUS_BYTES = 64 * 1024
MOST_REMEMBERED = 100_000
MOST_NAMED = 10
"""How many of those who are missing one sentence names."""


class _Claim(msgspec.Struct, frozen=True):
    """The part of a DeviceStatus that matters here."""

    state: Literal["online", "offline"]
    follows: Follows | msgspec.UnsetType = msgspec.UNSET


_CLAIM_DECODER: msgspec.json.Decoder[_Claim] = msgspec.json.Decoder(_Claim)


@dataclass(frozen=True)
class Absent:
    """A device that has not followed."""

    device: str
    seen_s: float | None
    """When it was last heard during the rotation, in Unix seconds."""
    is_invited: bool = False
    """Whether it has yet to enrol, with a file that names the present authority alone."""

    def described(self, now_s: float) -> str:
        if self.is_invited:
            return f"{self.device} has a token that it has not used"
        if self.seen_s is None:
            return f"{self.device} not seen since the rotation began"
        return f"{self.device} last seen {_ago(now_s - self.seen_s)}"


@dataclass(frozen=True)
class Headcount:
    """How many of the fleet's devices have followed."""

    devices: int
    missing: tuple[Absent, ...]
    returns: bool = False
    """Whether they are on their way back."""

    def sentence(self, now_s: float | None = None) -> str:
        """One sentence with numbers."""
        now_s = time.time() if now_s is None else now_s
        done = self.devices - len(self.missing)
        whom = "are back with the present authority" if self.returns else "follow the new authority"
        text = f"{done} of {self.devices} devices {whom}"
        if not self.missing:
            return text
        named = [each.described(now_s) for each in self.missing[:MOST_NAMED]]
        if len(self.missing) > MOST_NAMED:
            named.append(f"and {len(self.missing) - MOST_NAMED} more")
        return f"{text}; {', '.join(named)}"


class Followers:
    """Takes the statuses of devices while a rotation is under way; nothing in them is believed without its proof."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority
        self._seen: dict[str, float] = {}
        self._settled: dict[str, Follows] = {}
        """What each device said last that was looked into."""

    def take(self, ledger: Ledger, device: str, payload: bytes, *, number: int, by_next: bool, is_live: bool) -> None:
        """Note that a device is there (`is_live`), and whether it has followed statement `number`."""
        if len(payload) > MAX_STATUS_BYTES:
            return
        try:
            claim = _CLAIM_DECODER.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        if len(self._settled) >= MOST_REMEMBERED or len(self._seen) >= MOST_REMEMBERED:
            self._settled.clear()
            self._seen.clear()
        if claim.state == "online" and is_live:
            self._seen[device] = time.time()
        said = claim.follows
        if said is msgspec.UNSET or said.number != number or self._settled.get(device) == said:
            return
        self._settled[device] = said
        try:
            self._check(ledger, device, said, by_next=by_next)
        except SecurityError as error:
            log.warning("%s does not count as following: %s", one_line(device), one_line(str(error)))
            return
        ledger.note_following(device, number)
        log.info("%s follows statement %d", device, number)

    def flush(self, ledger: Ledger) -> None:
        """Write down who was seen."""
        seen, self._seen = self._seen, {}
        if seen:
            ledger.note_seen(seen)

    def _check(self, ledger: Ledger, device: str, said: Follows, *, by_next: bool) -> None:
        pem = ledger.valid_certificate(device, said.serial)
        if pem is None:
            raise SecurityError(f"it names certificate {said.serial}, which is none of its valid ones")
        certificate = x509.load_pem_x509_certificate(pem.encode())
        if not issued_by(certificate, self._authority.certificate(by_next=by_next)):
            raise SecurityError("its certificate is not by the authority that it is to follow")
        public = certificate.public_key()
        assert isinstance(public, ec.EllipticCurvePublicKey)
        statement = follow_statement(
            fleet=self._authority.settings.fleet, device=device, number=said.number, serial=said.serial
        )
        try:
            public.verify(bytes.fromhex(said.signature), statement, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature as error:
            raise SecurityError("its word is not signed with its key: somebody else spoke in its name") from error


def count_heads(authority: Authority, ledger: Ledger, *, number: int, returns: bool) -> Headcount:
    """Count who has followed statement `number`.

    On the way back, those count who never left: they have a certificate by the present authority alone.
    """
    now_s, known = time.time(), ledger.followers()
    invited = set(ledger.invited(now_s))
    devices = [member.device for member in ledger.members() if member.revoked_at is None and member.expires_at > now_s]
    away = set(holds_next(authority, ledger)) if returns else set(devices)
    missing = [
        Absent(device, known[device][1] if device in known else None)
        for device in devices
        if device in away and (device not in known or known[device][0] < number)
    ]
    waiting = [] if returns else [Absent(device, None, is_invited=True) for device in sorted(invited)]
    absent = {each.device: each for each in (*missing, *waiting)}
    return Headcount(len({*devices, *absent}), tuple(absent.values()), returns)


def holds_next(authority: Authority, ledger: Ledger) -> list[str]:
    """The members whose newest certificate is by the authority in next/."""
    issuer = authority.certificate(by_next=True)
    found = []
    for member in ledger.members():
        pem = ledger.certificate(member.device) if member.revoked_at is None else None
        if pem and issued_by(x509.load_pem_x509_certificate(pem.encode()), issuer):
            found.append(member.device)
    return found


def _ago(seconds: float) -> str:
    for unit, size_s in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if (number := int(seconds // size_s)) > 0:
            return f"{number} {unit}{'s' if number > 1 else ''} ago"
    return "just now"


def issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Whether that authority issued the certificate."""
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
