"""The rows of the page's table of devices, and which of them changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparsyedge.coordinator.authority.attendance import attendance, authority_folder, revoked_devices
from sparsyedge.coordinator.record.live import DeviceActivity
from sparsyedge.coordinator.record.page_store import DeviceTotals, PageStore, PresentDevice, Refused
from sparsyedge.coordinator.web.scores import NO_SCORES, LastScores, add_scores

__all__ = ["DeviceRows"]

Row = dict[str, Any]

REVOKED_EVERY_S = 5.0
OPEN_ROUNDS = 2
"""Of so many closed rounds the last reports may still come in."""
REPORTS_EVERY_S = 5.0
MAX_TEXT = 300
NOTHING = DeviceTotals()


class DeviceRows:
    """One row for each device that the run has heard of; a row is made anew only if something behind it changed."""

    def __init__(self) -> None:
        self.shown: dict[str, Row] = {}
        self.doubt = ""
        """Why it is not known who is revoked; empty if it is."""
        self._behind: dict[str, tuple[object, ...]] = {}
        self._folder: Path | None = None
        self._revoked: frozenset[str] = frozenset()
        self._revoked_at = 0.0
        self._settled: dict[str, DeviceTotals] = {}
        self._settled_to = 0
        self._closed: dict[str, DeviceTotals] = {}
        self._closed_read = (-1, 0.0)
        self._open: dict[str, DeviceTotals] = {}
        self._known: dict[str, PresentDevice] = {}
        self._refused: dict[str, Refused] = {}
        self._scores: dict[str, LastScores] = {}
        self._scores_to = 0

    def folder_of(self, store: PageStore) -> None:
        """Remember where the run's authority is."""
        self._folder = authority_folder(store)

    def is_stale(self, now: float) -> bool:
        """Whether it is time to ask the authority again who is revoked."""
        return self._folder is not None and now - self._revoked_at >= REVOKED_EVERY_S

    def look(
        self, store: PageStore | None, facts: Row, activities: Mapping[str, DeviceActivity], *, now: float
    ) -> list[Row]:
        """Return the rows that changed; `store` is None if it has not changed since the last look."""
        if self.is_stale(now):
            (self._revoked, self.doubt), self._revoked_at = revoked_devices(self._folder), now
        if store is not None:
            self._read(store, closed=facts["closed"], now=now)
        at_work = set(facts["cohort"]) - set(facts["accepted"])
        present = facts["round"] if facts["is_open"] else facts["closed"] + 1
        changed = []
        for device, known in self._known.items():
            behind = (
                known,
                self._closed.get(device),
                self._open.get(device),
                self._refused.get(device),
                self._scores.get(device),
                activities.get(device),
                device in at_work,
                device in self._revoked,
                present,
            )
            if self._behind.get(device) != behind:
                self._behind[device] = behind
                row = self._row(device, known, activities.get(device), at_work=device in at_work, present=present)
                if self.shown.get(device) != row:
                    self.shown[device] = row
                    changed.append(row)
        return changed

    def _read(self, store: PageStore, *, closed: int, now: float) -> None:
        settled_to = max(0, closed - OPEN_ROUNDS)
        if settled_to > self._settled_to:
            for device, totals in store.totals(self._settled_to + 1, settled_to).items():
                self._settled[device] = self._settled.get(device, NOTHING).plus(totals)
            self._settled_to = settled_to
        if self._closed_read[0] != closed or now - self._closed_read[1] > REPORTS_EVERY_S:
            self._closed, self._closed_read = store.totals(settled_to + 1, closed), (closed, now)
        self._open = store.totals(closed + 1, closed + 1)
        self._known, self._refused = store.present_devices(), store.refusals_by_device()
        self._scores_to, found = store.evaluations_since(self._scores_to)
        add_scores(self._scores, found)
        # Somebody who never came online can still have sent something that was refused.
        for device in self._refused.keys() - self._known.keys():
            self._known[device] = PresentDevice(seen_at=self._refused[device].at)

    def _total(self, device: str) -> DeviceTotals:
        total = self._settled.get(device, NOTHING)
        for part in (self._closed, self._open):
            if device in part:
                total = total.plus(part[device])
        return total

    def _row(
        self, device: str, known: PresentDevice, activity: DeviceActivity | None, *, at_work: bool, present: int
    ) -> Row:
        totals, refused = self._total(device), self._refused.get(device)
        scores = self._scores.get(device, NO_SCORES)
        left_out = present < known.quarantined_until
        state = attendance(
            revoked=device in self._revoked,
            unfit=known.unfit,
            online=bool(known.online),
            at_work=at_work,
            left_out=left_out,
        )
        busy = activity if activity and state == "training" and activity.round == present else None
        return {
            "id": device,
            "state": state,
            "phase": busy.phase if busy else "",
            "step": busy.step if busy else 0,
            "steps": busy.steps if busy else 0,
            "loss": busy.loss if busy else None,
            "temperature": activity.temperature_c if activity else None,
            "battery": activity.battery_percent if activity else None,
            "seen": round(max(known.seen_at, totals.accepted_at, activity.at if activity else 0.0)),
            "joules": totals.joules,
            "kind": totals.energy_kind,
            "up": totals.bytes_up,
            "down": totals.bytes_down,
            "seconds": totals.seconds,
            "updates": totals.updates,
            "last": totals.last_round,
            "version": known.software[:MAX_TEXT],
            "samples": known.samples,
            "given": scores.given,
            "own": scores.own,
            "scored": scores.round,
            "is_regression": scores.is_regression,
            "model_round": known.model_round,
            "predict_ms": known.predict_ms,
            "upgrade": known.upgrade,
            "upgrade_reason": known.upgrade_reason[:MAX_TEXT],
            "refused": refused.times if refused else 0,
            "why": _reasons(known, refused, left_out=left_out),
        }


def _reasons(known: PresentDevice, refused: Refused | None, *, left_out: bool) -> list[str]:
    reasons = [f"unfit: {known.unfit}"] if known.unfit else []
    if left_out:
        reasons.append(f"left out until round {known.quarantined_until}: {known.quarantine}")
    if known.alarm:
        reasons.append(f"alarm: {known.alarm}")
    if refused:
        in_all = f" ({refused.times}x in all)" if refused.times > 1 else ""
        reasons.append(f"refused in round {refused.round}{in_all}: {refused.reason}")
    return [reason[:MAX_TEXT] for reason in reasons]
