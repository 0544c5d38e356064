"""Renews a device's certificate over its own connection: long before it ends, or when another authority is to issue it.

The device keeps its key and asks under the certificate that it has. The new one replaces it in one file, and the next
connection uses it; an answer that is lost costs nothing, since the old one stays good.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from msgspec import UNSET

from sparsyedge.edge.device.courier import Courier
from sparsyedge.edge.errors import LinkError, SecurityError
from sparsyedge.edge.security.enrolment_messages import RENEW_BEFORE_S, NotRenewed, RenewalRequest, decode_renewal
from sparsyedge.edge.security.identity import Identity
from sparsyedge.edge.text import one_line

__all__ = ["Renewal"]

log = logging.getLogger(__name__)

ASK_AGAIN_S = 3600.0
FOLLOW_AGAIN_S = 60.0
"""How often to ask for a certificate by the fleet's next authority: people wait for that."""
CLOCK_S = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
"""A clock before this date is wrong; a board without one learns the time from its network."""


class Renewal:
    """Asks when it is time, and keeps the answer."""

    def __init__(self, identity: Identity, courier: Courier, *, clock: Callable[[], float] = time.time) -> None:
        self._identity = identity
        self._courier = courier
        self._clock = clock
        self._asked_s = -ASK_AGAIN_S
        self._told = ""
        courier.on_identity = self._take

    def check(self) -> None:
        """Ask for a new certificate if the present one ends soon, or is not by the authority that it shall be by.

        Call it every now and then.
        """
        waited_s, device = time.monotonic() - self._asked_s, self._courier.device
        if waited_s < FOLLOW_AGAIN_S:
            return
        try:
            if not (self._is_by_another() or (waited_s >= ASK_AGAIN_S and self._ends_soon())):
                return
            self._asked_s = time.monotonic()
            number = self._identity.record.number or UNSET
            request = RenewalRequest(device=device, csr=self._identity.ask_again(device), authority=number)
            self._courier.ask_renewal(request)
        except (SecurityError, LinkError) as error:
            self._warn(f"cannot ask for a new certificate: {error}")

    def hurry(self) -> None:
        """Let the next `check` ask at once: who is to certify this device has changed."""
        self._asked_s = -ASK_AGAIN_S

    def _ends_soon(self) -> bool:
        now_s = self._clock()
        return now_s >= CLOCK_S and self._identity.expires_s - now_s <= RENEW_BEFORE_S

    def _is_by_another(self) -> bool:
        return self._identity.record.number > 0 and not self._identity.is_certified

    def _take(self, payload: bytes) -> None:
        """Keep a new certificate; raises FrameError for anything that is no answer."""
        reply = decode_renewal(payload)
        if isinstance(reply, NotRenewed):
            self._warn(f"the coordinator renews no certificate: {one_line(reply.reason)}")
            return
        try:
            before = self._identity.serial
            self._identity.renew(reply.certificate, device=self._courier.device)
        except SecurityError as error:
            self._warn(f"a new certificate is not used: {error}")
            return
        if self._identity.serial != before:
            until = datetime.fromtimestamp(self._identity.expires_s, UTC).date()
            log.info("the certificate of this device is renewed, until %s", until)

    def _warn(self, sentence: str) -> None:
        if sentence != self._told:
            log.warning("%s", sentence)
        self._told = sentence
