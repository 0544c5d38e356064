"""The devices that a fleet's authority has shut out, for a run that is under way."""

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
"""How long the loop of a run may wait for the ledger."""


class RevokedDevices:
    """Nobody, in a fleet without an authority. The broker refuses the banned, we what it had taken from them before."""

    def __init__(self, config: RunConfig) -> None:
        self._authority = open_authority(config)
        self._banned: frozenset[str] = frozenset()
        self._refresh_s = 0.0
        self._trouble = ""
        """Why the ledger could not be read the last time; said once."""

    def __contains__(self, device: str) -> bool:
        return device in self._banned

    def refresh(self, now_s: float) -> frozenset[str]:
        """Who is banned since the last call; looks into the authority's ledger every few seconds."""
        if self._authority is None or now_s < self._refresh_s:
            return frozenset()
        self._refresh_s = now_s + REFRESH_S
        before = self._banned
        try:
            with self._authority.ledger(timeout_s=LEDGER_TIMEOUT_S) as ledger:
                self._banned = frozenset(ledger.denied())
        except (SparsyedgeError, sqlite3.Error, OSError) as error:
            # The broker shuts the banned out by itself; a run need not end because we cannot look.
            if str(error) != self._trouble:
                log.warning("who was revoked lately is not known to this run: %s", error)
            self._trouble = str(error)
        else:
            self._trouble = ""
        return self._banned - before
