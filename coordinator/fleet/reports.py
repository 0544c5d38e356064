"""What rounds cost the devices: records their reports, and knows whose are still to come for the present round."""

from __future__ import annotations

from sparsyedge.coordinator.fleet.announcements import Announcements
from sparsyedge.coordinator.fleet.refusals import Refusals
from sparsyedge.coordinator.record.store import Store
from sparsyedge.coordinator.rounds.events import RefusalKind
from sparsyedge.edge.protocol.messages import Report

__all__ = ["Reports"]


class Reports:
    """The reports of one run; devices send theirs once their update is accepted."""

    def __init__(self, run: str, store: Store, announcements: Announcements, refusals: Refusals) -> None:
        self._run = run
        self._store = store
        self._announcements = announcements
        self._refusals = refusals
        self._awaited: set[str] = set()
        self._arrived: set[str] = set()

    def take(self, device: str, report: Report) -> None:
        """Record a report; one without an accepted update is refused."""
        if report.run != self._run or not self._store.add_report(device, report):
            reason = f"report on round {report.round} of run {report.run}: no update was accepted"
            self._refusals.count(device, RefusalKind.REPORT, reason)
        elif report.round == self._announcements.round:
            self._arrived.add(device)

    def open_round(self) -> None:
        """Expect nothing yet."""
        self._awaited.clear()
        self._arrived.clear()

    def close_round(self, accepted: tuple[str, ...]) -> None:
        """Expect a report from every device whose update was accepted."""
        self._awaited = set(accepted)

    @property
    def are_missing(self) -> bool:
        """Whether a report is still to come."""
        return bool(self._awaited - self._arrived)
