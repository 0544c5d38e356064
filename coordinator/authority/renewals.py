"""Renews members' certificates: who asks is known by the broker, and must hold the key of the present certificate.

While the fleet's authority is replaced, those who follow get a certificate by the one that they are to follow.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from sparsyedge.coordinator.authority import certificates
from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.authority.followers import issued_by
from sparsyedge.coordinator.authority.ledger import Ledger
from sparsyedge.coordinator.authority.rotation import rotating
from sparsyedge.edge.errors import FrameError, SecurityError
from sparsyedge.edge.protocol.messages import decode
from sparsyedge.edge.security.enrolment_messages import (
    MAX_REQUEST_BYTES,
    RENEW_BEFORE_S,
    NotRenewed,
    RenewalReply,
    RenewalRequest,
    Renewed,
)
from sparsyedge.edge.text import one_line

__all__ = ["Renewals"]

log = logging.getLogger(__name__)

PATIENCE_S = 10.0
"""How often a device gets an answer at most. Honest ones ask once an hour."""
MOST_REMEMBERED = 100_000


class Renewals:
    """Answers requests for renewal, at most one per device and PATIENCE_S."""

    def __init__(self, authority: Authority, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._authority = authority
        self._clock = clock
        self._answered_s: dict[str, float] = {}

    def answer(self, ledger: Ledger, device: str, payload: bytes, *, now_s: float) -> RenewalReply | None:
        """Return what to tell the device, whose name the broker vouches for; None if it is to be ignored."""
        since_s = self._clock() - self._answered_s.get(device, -PATIENCE_S)
        if since_s < PATIENCE_S:
            return None
        if len(self._answered_s) >= MOST_REMEMBERED:
            self._answered_s.clear()
        self._answered_s[device] = self._clock()
        try:
            certificate = self._renew(ledger, device, payload, now_s)
        except (FrameError, SecurityError) as error:
            log.warning("no new certificate for %s: %s", one_line(device), one_line(str(error)))
            return NotRenewed(device=device, reason=one_line(str(error)))
        return Renewed(device=device, certificate=certificate)

    def _renew(self, ledger: Ledger, device: str, payload: bytes, now_s: float) -> str:
        if len(payload) > MAX_REQUEST_BYTES:
            raise FrameError("the request is too long")
        request = decode(payload, RenewalRequest)
        if request.device != device:
            raise SecurityError("the request is for another device than the one that sent it")
        pem = ledger.certificate(device)
        if pem is None or device in ledger.denied():
            raise SecurityError("the device is no member, or has been revoked; enrol it with a token")
        present = x509.load_pem_x509_certificate(pem.encode())
        public = certificates.read_csr(request.csr, device=device)
        if public != present.public_key():
            raise SecurityError("the request is not for the key of the present certificate; enrol with a token instead")
        # Nobody aborts or finishes a rotation while a certificate is made for it.
        with rotating(self._authority) as state:
            follows = state is not None and state.stage == "following" and request.authority == state.number
            return self._issue(ledger, device, present, by_next=follows, now_s=now_s)

    def _issue(self, ledger: Ledger, device: str, present: x509.Certificate, *, by_next: bool, now_s: float) -> str:
        lasts = present.not_valid_after_utc.timestamp() - now_s > RENEW_BEFORE_S
        if lasts and issued_by(present, self._authority.certificate(by_next=by_next)):
            # The answer got lost, or the device's clock is ahead: this is the newest there is.
            return certificates.certificate_pem(present).decode()
        public = present.public_key()
        assert isinstance(public, ec.EllipticCurvePublicKey)
        issued = self._authority.issue(public, device, by_next=by_next)
        renewed = certificates.certificate_pem(issued).decode()
        expires_at = issued.not_valid_after_utc.timestamp()
        if not ledger.renew(device, certificate=renewed, serial=issued.serial_number, expires_at=expires_at):
            raise SecurityError("the device was revoked meanwhile")
        if self._authority.cluster is not None:
            # A cluster lists certificates one by one.
            self._authority.write_lists(ledger)
            self._authority.reload()
        log.info("renewed the certificate of %s, until %s", device, issued.not_valid_after_utc.date())
        return renewed
