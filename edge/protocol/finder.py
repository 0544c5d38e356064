"""Finds a fleet's broker on the local network, for a device that knows the fleet's authority but not where it is."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.protocol import mdns
from sparsyedge.edge.protocol.route import Address

__all__ = ["Finder"]

MAX_FOUND: Final = 16
"""The most addresses to try."""


class Finder:
    """Looks for one fleet's broker. Whoever answers, the link then accepts only the pinned authority's certificate."""

    def __init__(self, fleet: str, ca: Path, *, for_newcomers: bool = False) -> None:
        """With `for_newcomers`, it finds the port where new devices enrol; raises SecurityError for a bad `ca`."""
        self._fleet = fleet
        self._ca = ca
        self._authorities = mdns.authority_fingerprints(ca)
        self._for_newcomers = for_newcomers
        self.outcome = "it was not looked for yet"
        """What the last look came to, in words."""

    def look(self) -> list[Address]:
        """Where the broker may be; blocks for some seconds if nobody answers."""
        # The fleet's authority may have been replaced since the last look.
        with contextlib.suppress(SecurityError):
            self._authorities = mdns.authority_fingerprints(self._ca)
        try:
            answers = mdns.listen(self._fleet, self._authorities)
        except OSError as error:
            self.outcome = f"this machine's network cannot be asked: {error}"
            return []
        found = [
            Address(address, broker.enrol_port if self._for_newcomers else broker.port)
            for broker in answers.brokers
            for address in broker.addresses
        ]
        places = list(dict.fromkeys(found))[:MAX_FOUND]
        self.outcome = f"{len(places)} places announce it" if places else "nobody on this network announces it"
        if answers.strangers:
            self.outcome += f"; {answers.strangers} answers had another authority or could not be read"
        return places

    @property
    def waiting(self) -> str:
        """Whom the device waits for, and what to do about it."""
        return (
            f"waiting for the broker of fleet {self._fleet}: {self.outcome}; start `sparsyedge coordinator run` or "
            f"`sparsyedge coordinator enrol` in this network, or name the broker in device.toml"
        )
