"""The devices that a fleet's authority has shut out, for a run that is under way."""

from __future__ import annotations

from sparsyedge.coordinator.access import open_authority
from sparsyedge.coordinator.config import RunConfig

__all__ = ["BANNED", "Bans"]

BANNED = "the device is revoked"
REFRESH_S = 5.0


class Bans:
    """Nobody, in a fleet without an authority. The broker refuses the banned, we what it had taken from them before."""

    def __init__(self, config: RunConfig) -> None:
        self._authority = open_authority(config)
        self._banned: frozenset[str] = frozenset()
        self._refresh_s = 0.0

    def __contains__(self, device: str) -> bool:
        return device in self._banned

    def refresh(self, now_s: float) -> frozenset[str]:
        """Who is banned since the last call; looks into the authority's ledger every few seconds."""
        if self._authority is None or now_s < self._refresh_s:
            return frozenset()
        self._refresh_s = now_s + REFRESH_S
        before = self._banned
        with self._authority.ledger() as ledger:
            self._banned = frozenset(ledger.denied())
        return self._banned - before
