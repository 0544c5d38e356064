"""Records the devices' cost reports and knows which are still missing for the current round."""

from __future__ import annotations

from sparsyedge.coordinator.fleet.announcements import Announcements
from sparsyedge.coordinator.fleet.refusals import Refusals
from sparsyedge.coordinator.record.store import Store
from sparsyedge.coordinator.rounds.events import RefusalKind
from sparsyedge.edge.protocol.messages import Report

__all__ = ["Reports"]


class Reports:
    """The reports of one run; a device sends its report once its update is accepted."""

    def __init__(self, run: str, store: Store, announcements: Announcements, refusals: Refusals) -> None:
        self._run = run
        self._store = store
        self._announcements = announcements
        self._refusals = refusals
        self._awaited: set[str] = set()
        self._arrived: set[str] = set()

    def take(self, device: str, report: Report) -> None:
        """Record a report; refuse it if the device has no accepted update in that round."""
        if report.run != self._run or not self._store.add_report(device, report):
            reason = f"report on round {report.round} of run {report.run}: no update was accepted"
            self._refusals.count(device, RefusalKind.REPORT, reason)
        elif report.round == self._announcements.round:
            self._arrived.add(device)

    def open_round(self) -> None:
        """Expect no reports yet."""
        self._awaited.clear()
        self._arrived.clear()

    def close_round(self, accepted: tuple[str, ...]) -> None:
        """Expect a report from every device whose update was accepted."""
        self._awaited = set(accepted)

    @property
    def are_missing(self) -> bool:
        """Whether a report is still missing."""
        return bool(self._awaited - self._arrived)
