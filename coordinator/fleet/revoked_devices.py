"""The fleet's revoked devices, kept up to date during a run."""

from __future__ import annotations

import logging
import sqlite3

from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.fleet.broker_access import open_authority
from sparsyedge.edge.errors import SparsyedgeError

__all__ = ["BANNED", "RevokedDevices"]

log = logging.getLogger(__name__)

BANNED = "the device is revoked"
REFRESH_S = 5.0
LEDGER_TIMEOUT_S = 1.0
"""How long the main loop may wait for the ledger."""


class RevokedDevices:
    """Revoked devices; empty without an authority.

    The broker refuses their new messages; we drop those it queued before the revocation.
    """

    def __init__(self, config: RunConfig) -> None:
        self._authority = open_authority(config)
        self._banned: frozenset[str] = frozenset()
        self._refresh_s = 0.0
        self._trouble = ""
        """The last error while reading the ledger; logged once."""

    def __contains__(self, device: str) -> bool:
        return device in self._banned

    def refresh(self, now_s: float) -> frozenset[str]:
        """Devices revoked since the last call; reads the authority's ledger every few seconds."""
        if self._authority is None or now_s < self._refresh_s:
            return frozenset()
        self._refresh_s = now_s + REFRESH_S
        before = self._banned
        try:
            with self._authority.ledger(timeout_s=LEDGER_TIMEOUT_S) as ledger:
                self._banned = frozenset(ledger.denied())
        except (SparsyedgeError, sqlite3.Error, OSError) as error:
            # The broker enforces the ban by itself, so the run can go on without the ledger.
            if str(error) != self._trouble:
                log.warning("cannot read the ledger, so this run misses recent revocations: %s", error)
            self._trouble = str(error)
        else:
            self._trouble = ""
        return self._banned - before
