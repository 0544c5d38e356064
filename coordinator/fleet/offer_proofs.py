"""Checks that a device signed its offer with the key it enrolled with, so a broker cannot forge offers."""

from __future__ import annotations

import hashlib
import logging
import sqlite3
import time
from collections.abc import Callable

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.fleet.broker_access import open_authority
from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.protocol.messages import Offer, encode
from sparsyedge.edge.security.signature import update_statement

__all__ = ["UNPROVEN", "OfferProofs"]

log = logging.getLogger(__name__)

UNPROVEN = "the offer is not signed with the key that this device enrolled with"
REFRESH_S = 5.0
"""How soon we learn a device's new key after it enrolled again; also limits the look-ups a forger can cause."""
MAX_KNOWN = 4096


class OfferProofs:
    """Checks offers; without an authority every offer passes.

    Devices repeat an offer until we answer, so we cache proven offers: the next check costs one hash.
    """

    def __init__(self, config: RunConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._authority = open_authority(config)
        self._fleet = config.fleet
        self._clock = clock
        self._keys: dict[str, tuple[ec.EllipticCurvePublicKey | None, float]] = {}
        self._proven: set[bytes] = set()

    def holds(self, device: str, offer: Offer) -> bool:
        """Whether the device itself made this offer."""
        if self._authority is None:
            return True
        digest = hashlib.sha256(f"{device}\n".encode() + encode(offer)).digest()
        if digest in self._proven:
            return True
        if not self._verify(device, offer):
            return False
        if len(self._proven) >= MAX_KNOWN:
            self._proven.clear()
        self._proven.add(digest)
        return True

    def _verify(self, device: str, offer: Offer) -> bool:
        if not offer.signature:
            return False
        key, until_s = self._keys.get(device, (None, 0.0))
        if key is not None and self._is_signed(device, offer, key):
            return True
        if self._clock() < until_s:
            return False
        key = self._look_up(device)
        if device not in self._keys and len(self._keys) >= MAX_KNOWN:
            self._keys.clear()
        self._keys[device] = (key, self._clock() + REFRESH_S)
        return key is not None and self._is_signed(device, offer, key)

    def _look_up(self, device: str) -> ec.EllipticCurvePublicKey | None:
        assert self._authority is not None
        try:
            with self._authority.ledger() as ledger:
                pem = ledger.certificate(device)
            key = x509.load_pem_x509_certificate(pem.encode()).public_key() if pem else None
        except (SecurityError, sqlite3.Error, ValueError) as error:
            # The device offers again, and we look again.
            log.warning("the certificate of %s cannot be looked up: %s", device, error)
            return None
        return key if isinstance(key, ec.EllipticCurvePublicKey) else None

    def _is_signed(self, device: str, offer: Offer, key: ec.EllipticCurvePublicKey) -> bool:
        statement = update_statement(offer, fleet=self._fleet, device=device)
        try:
            key.verify(bytes.fromhex(offer.signature), statement, ec.ECDSA(hashes.SHA256()))
        except (InvalidSignature, ValueError):
            return False
        return True
