"""Follows the fleet's authority to the next one, without anybody at the board.

The coordinator's statement says whom to trust. The device stores that whole or not at all, asks for a certificate by
the authority that is to certify it, and then says that it is ready. edge/security/succession.py has the rules.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from sparsyedge.edge.device.courier import Courier
from sparsyedge.edge.device.renewal import Renewal
from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.protocol.messages import Follows
from sparsyedge.edge.protocol.topics import Topics
from sparsyedge.edge.security.identity import Identity
from sparsyedge.edge.security.pinned_keys import PinnedKeys
from sparsyedge.edge.security.succession import MAX_PAYLOAD_BYTES, TrustRecord, follow_statement, judge

__all__ = ["SuccessionWatch"]

log = logging.getLogger(__name__)

LOOK_S = 5.0
"""How often a device looks at its identity on disk."""


class SuccessionWatch:
    """Takes statements as they come, and acts on them between rounds."""

    def __init__(
        self,
        identity: Identity,
        courier: Courier,
        keys: PinnedKeys,
        *,
        fleet: str,
        renewal: Renewal,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._identity = identity
        self._courier = courier
        self._keys = keys
        self._fleet = fleet
        self._renewal = renewal
        self._clock = clock
        self._record = identity.record
        self._heard = b""
        """The last statement that came, not yet looked at."""
        self._refused = b""
        self._looked_s = -LOOK_S

    def join(self) -> None:
        """Subscribe to statements, and take up what a restart interrupted."""
        self._courier.watch(Topics(self._fleet).authority, self._hear)
        self._courier.follows = self._word()

    def work(self) -> None:
        """Follow the latest statement; call it between rounds. Returns at once if there is nothing to do."""
        try:
            payload, self._heard = self._heard, b""
            if payload and payload != self._refused:
                self._take(payload)
            if self._clock() - self._looked_s >= LOOK_S:
                self._looked_s = self._clock()
                self._look()
        except (SecurityError, OSError) as error:
            # While somebody enrols this device again, its files do not match each other.
            log.debug("the identity cannot be read right now: %s", error)

    def _look(self) -> None:
        """See whether the new certificate has come, or somebody has enrolled this device again."""
        if (record := self._identity.record) != self._record:
            self._count_on(record)
        if len(self._record.authorities) > 1:
            self._renewal.check()
            self._tell()

    def _count_on(self, record: TrustRecord) -> None:
        """Check everything against these authorities from now on."""
        self._record, self._refused = record, b""
        self._keys.present = tuple(authority.signing_key for authority in record.authorities)
        self._courier.forget_old_task()

    def _hear(self, payload: bytes) -> None:
        # Longer ones are not even kept; one byte more than allowed is enough for the refusal.
        self._heard = payload[: MAX_PAYLOAD_BYTES + 1]

    def _take(self, payload: bytes) -> None:
        try:
            record = judge(payload, self._record, fleet=self._fleet)
            if record == self._record:
                return
            self._adopt(record)
        except SecurityError as error:
            self._refused = payload
            log.warning("refused a statement about the fleet's authority and trust whom we did: %s", error)
        except OSError as error:
            # The broker repeats the statement at the next refresh.
            log.warning("cannot store a statement about the fleet's authority: %s; trying again", error)

    def _adopt(self, record: TrustRecord) -> None:
        """Trust whom the statement names; what it does not name counts no more."""
        self._identity.trust(record)
        self._count_on(record)
        self._renewal.hurry()
        self._looked_s = -LOOK_S
        names = " and ".join(f"{authority.signing_key[:12]}..." for authority in record.authorities)
        log.info("statement %d: this device now trusts the fleet's key %s", record.number, names)
        if len(record.authorities) == 1 and not self._identity.is_certified:
            # The renewal asks over this connection for as long as it lasts.
            log.warning("the fleet's old authority is gone, and this device has no certificate by the new one yet")
        self._tell()

    def _tell(self) -> None:
        """Tell the coordinator that this device is ready for the next authority, once it is."""
        before, self._courier.follows = self._courier.follows, self._word()
        if self._courier.follows != before:
            self._courier.say_hello()

    def _word(self) -> Follows | None:
        if len(self._record.authorities) == 1 or not self._identity.is_certified:
            return None
        number, serial = self._record.number, self._identity.serial
        said = self._courier.follows
        if said is not None and (said.number, said.serial) == (number, serial):
            return said
        statement = follow_statement(fleet=self._fleet, device=self._courier.device, number=number, serial=serial)
        return Follows(number=number, serial=serial, signature=self._identity.sign(statement).hex())
