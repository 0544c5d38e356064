"""Carries out the state machine's commands about rounds: on disk first, then to the fleet, then to the observer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from sparsyedge.coordinator.fleet.announcements import Announcements
from sparsyedge.coordinator.fleet.refusals import Refusals
from sparsyedge.coordinator.fleet.reports import Reports
from sparsyedge.coordinator.fleet.uploads import Uploads
from sparsyedge.coordinator.fleet.waiting_notes import WaitingNotes
from sparsyedge.coordinator.model.global_model import GlobalModel
from sparsyedge.coordinator.model.round_closing import RoundClosing
from sparsyedge.coordinator.record.observer import Observer
from sparsyedge.coordinator.record.store import Store
from sparsyedge.coordinator.rounds.deadlines import MOST_S
from sparsyedge.coordinator.rounds.events import (
    CloseRound,
    ExtendRound,
    ModelReady,
    OpenRound,
    Quarantine,
    RefusalKind,
    ReplaceMember,
)
from sparsyedge.coordinator.rounds.past import Past
from sparsyedge.coordinator.rounds.stages import Open
from sparsyedge.edge.errors import RunError
from sparsyedge.edge.protocol.messages import Quality

__all__ = ["RoundEffects"]

ANNOUNCE_S = 1.0


class RoundEffects:
    """Opens, extends and closes rounds."""

    def __init__(
        self,
        rounds: int,
        *,
        store: Store,
        model: GlobalModel,
        closing: RoundClosing,
        observer: Observer,
        announcements: Announcements,
        uploads: Uploads,
        refusals: Refusals,
        reports: Reports,
        notes: WaitingNotes,
        clock: Callable[[], float],
        past: Callable[[], Mapping[str, Past]] = dict,
    ) -> None:
        """`past` reads what is on record of devices, for a policy that chooses by it."""
        self._past = past
        self._rounds = rounds
        self._store = store
        self._model = model
        self._closing = closing
        self._observer = observer
        self._announcements = announcements
        self._uploads = uploads
        self._refusals = refusals
        self._reports = reports
        self._notes = notes
        self._clock = clock
        self._opened_s = 0.0
        self._substitutes: set[str] = set()
        """Devices that replaced others and are not in the record yet."""
        self._is_announced = True
        self._announced_s = -ANNOUNCE_S

    def resume(self, stage: Open) -> None:
        """Announce a round that an earlier process opened, as recorded in the store."""
        opened = self._store.progress().open
        if opened is None:
            raise RunError(f"the record of the run has no open round {stage.round}")
        now_s = self._clock()
        # Somebody may have set the wall clock meanwhile; the round did not take years.
        self._opened_s = now_s - min(MOST_S, max(0.0, time.time() - opened.opened_at))
        command = OpenRound(stage.round, stage.cohort, stage.deadline_s)
        left_s = stage.deadline_s - now_s
        self._announcements.open_round(
            command, self._model, left_s=left_s, learning_rate=opened.learning_rate, quality=self._quality()
        )
        self._observer.round_resumed(
            round_number=stage.round, rounds=self._rounds, accepted=len(stage.accepted), cohort=stage.cohort
        )

    def open(self, command: OpenRound) -> None:
        """Record and announce a new round."""
        self._forget_replacements()
        now_s = self._opened_s = self._clock()
        self._notes.restart()
        self._reports.open_round()
        rate = self._announcements.learning_rate(command.round)
        self._store.open_round(
            command.round,
            base=self._model.id,
            base_nonzeros=self._model.nonzeros_for(command.cohort),
            learning_rate=rate,
            cohort=command.cohort,
        )
        self._announcements.open_round(command, self._model, left_s=command.deadline_s - now_s, quality=self._quality())
        self._observer.round_opened(
            round_number=command.round, rounds=self._rounds, cohort=command.cohort, learning_rate=rate
        )

    def extend(self, command: ExtendRound) -> None:
        """Give the open round another deadline."""
        self._forget_replacements()
        self._store.extend_round(command.round, cohort=command.cohort, extensions=command.extension)
        self._announcements.extend_round(command.cohort, left_s=command.deadline_s - self._clock())
        self._observer.round_extended(round_number=command.round, cohort=command.cohort, extension=command.extension)

    def replace_member(self, command: ReplaceMember) -> None:
        """Note that a member's place goes to another device; `announce_members` tells them."""
        self._substitutes.add(command.substitute)
        self._is_announced = False
        self._observer.member_replaced(round_number=command.round, device=command.device, substitute=command.substitute)

    def record_members(self, stage: Open, *, for_device: str) -> None:
        """Record the cohort before an update of a device that has only just joined it."""
        if for_device in self._substitutes:
            self._substitutes.clear()
            self._store.replace_member(stage.round, cohort=stage.cohort)

    def announce_members(self, stage: Open, *, is_idle: bool) -> None:
        """Record and announce the cohort if members were replaced; once a second at most unless `is_idle`."""
        now_s = self._clock()
        if self._is_announced or not (is_idle or now_s - self._announced_s >= ANNOUNCE_S):
            return
        self._is_announced, self._announced_s = True, now_s
        self._substitutes.clear()
        cohort = stage.cohort
        self._store.replace_member(stage.round, cohort=cohort)
        self._announcements.extend_round(cohort, left_s=stage.deadline_s - now_s)

    def quarantine(self, command: Quarantine) -> None:
        """Record that a device enters or leaves quarantine."""
        self._store.note_quarantine(command.device, until_round=command.until_round, reason=command.reason)
        self._observer.device_quarantined(device=command.device, until_round=command.until_round, reason=command.reason)

    def close(self, command: CloseRound) -> ModelReady:
        """Make the next model; the round is recorded when this returns."""
        self._announcements.end("closed")
        self._reports.close_round(command.accepted)
        for device, reason in self._uploads.unfinished().items():
            self._refusals.count(device, RefusalKind.UNFINISHED, reason, round_number=command.round)
        self._refusals.flush()
        if self._closing.is_evaluating:
            self._notes.say(f"round {command.round} waits to be closed: the model before it is being evaluated")
        # The next model overwrites the one that may still be under evaluation.
        self.note_evaluation(wait=True)
        self._closing.close_round(
            command.round,
            command.accepted,
            elapsed_s=lambda: self._clock() - self._opened_s,
            tell=self._notes.say,
        )
        self._observer.round_closed(self._store.closed_round(command.round))
        return self.model_ready()

    def finish(self) -> None:
        """Announce the end of the run, with the model of the last closed round."""
        self._announcements.finish(self._model, self._quality())

    def _quality(self) -> Quality | None:
        """What is on record of the present model; None before the first round closed."""
        if not self._model.rounds:
            return None
        record = self._store.closed_round(self._model.rounds)
        return Quality(
            sparsity=record.global_sparsity,
            accuracy=record.test_accuracy,
            rmse=record.test_rmse,
            r_squared=record.test_r_squared,
        )

    def note_evaluation(self, *, wait: bool = False) -> None:
        """Report an evaluation that lagged behind its round, if one is done."""
        record = self._closing.record_evaluation(wait=wait)
        if record is not None:
            self._observer.round_evaluated(record)

    def _forget_replacements(self) -> None:
        """A new announcement names the whole cohort."""
        self._substitutes.clear()
        self._is_announced = True

    def model_ready(self) -> ModelReady:
        """The event that follows a closed round."""
        return ModelReady(self._model.id, self._past())
