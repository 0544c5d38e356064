"""Leads evaluation rounds: devices evaluate the run's model on their own samples, and nobody trains.

One takes place between two training rounds, which wait for it, or after the run is over. It asks every device that is
online, fit and new enough, and ends when all of them have answered, left or run out of time.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.fleet.announcements import Announcements
from sparsyedge.coordinator.fleet.publisher import Publisher
from sparsyedge.coordinator.fleet.refusals import Refusals
from sparsyedge.coordinator.model.global_model import GlobalModel
from sparsyedge.coordinator.record.device_evaluations import GLOBAL_PREFIX, EvaluationRound, shown
from sparsyedge.coordinator.record.observer import Observer
from sparsyedge.coordinator.record.store import Store
from sparsyedge.coordinator.rounds.deadlines import patience_s
from sparsyedge.coordinator.rounds.events import OpenRound, RefusalKind
from sparsyedge.coordinator.rounds.stages import RunState
from sparsyedge.edge.compatibility import DEVICE_EVALUATION, FIRST
from sparsyedge.edge.protocol.messages import Accepted, DeviceStatus, LocalEvaluation, Report

__all__ = ["EvaluationRounds"]

log = logging.getLogger(__name__)


@dataclass
class _Present:
    """The evaluation round that is under way."""

    number: int
    round: int
    cohort: frozenset[str]
    deadline_s: float
    answered: set[str] = field(default_factory=set)


class EvaluationRounds:
    """At most one evaluation round at a time; the owner sees to it that no training round opens meanwhile."""

    def __init__(
        self,
        config: RunConfig,
        *,
        store: Store,
        model: GlobalModel,
        announcements: Announcements,
        publisher: Publisher,
        refusals: Refusals,
        observer: Observer,
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._store = store
        self._model = model
        self._announcements = announcements
        self._publisher = publisher
        self._refusals = refusals
        self._observer = observer
        self._clock = clock
        self._able: set[str] = set()
        self._present: _Present | None = None
        self._unanswered: list[tuple[str, Accepted]] = []
        self.last: EvaluationRound | None = None
        """The last one that ended."""
        for each in store.evaluation_rounds():
            if each.ended_at is None:
                # Its coordinator died; the answers that came in count.
                store.end_evaluation(each.number)

    @property
    def is_under_way(self) -> bool:
        """Whether devices are evaluating."""
        return self._present is not None

    def note_device(self, device: str, status: DeviceStatus) -> None:
        """Remember whether a device knows about evaluation rounds."""
        able = status.state == "online" and DEVICE_EVALUATION in (status.speaks or FIRST).features
        (self._able.add if able else self._able.discard)(device)

    def begin(self, state: RunState) -> None:
        """Ask all devices that are online, fit and new enough."""
        cohort = tuple(sorted(device for device in state.willing if device in self._able))
        number = self._store.begin_evaluation(
            round_number=state.closed_round, model_id=self._model.id, asked=len(cohort)
        )
        self._store.drop_evaluation_requests()
        fixed_s = self._config.deadline_s
        left_s = max((fixed_s or patience_s(state.times.get(device, ())) for device in cohort), default=0.0)
        self._present = _Present(number, max(1, state.closed_round), frozenset(cohort), self._clock() + left_s)
        older = len(state.willing) - len(cohort)
        besides = f"; {older} more need a newer sparsyedge for that" if older else ""
        self._observer.note(
            f"evaluation {number}: asking {len(cohort)} devices for at most {left_s / 60:.0f} min{besides}"
        )
        if cohort:
            command = OpenRound(self._present.round, cohort, self._present.deadline_s)
            self._announcements.open_evaluation(number, command, self._model, left_s=left_s)
        else:
            self.end()

    def take(self, device: str, report: Report, payload: bytes) -> None:
        """Record a device's answer once; `settle` confirms it."""
        present = self._present
        if (
            present is None
            or (report.run, report.evaluation, report.round) != (self._config.name, present.number, present.round)
            or device not in present.cohort
            or not isinstance(report.evaluated, LocalEvaluation)
        ):
            reason = f"report on evaluation {report.evaluation} of run {report.run}: nobody asked for it, or it is over"
            self._refusals.count(device, RefusalKind.REPORT, reason)
            return
        if device not in present.answered:
            present.answered.add(device)
            self._store.add_evaluation(present.number, device, report, round_number=present.round)
        name = hashlib.sha256(payload).hexdigest()
        self._unanswered.append((device, Accepted(run=report.run, round=report.round, update=name)))

    def settle(self) -> None:
        """Make the answers durable, then confirm them."""
        if self._unanswered:
            self._store.commit()
            unanswered, self._unanswered = self._unanswered, []
            for device, reply in unanswered:
                self._publisher.reply(device, reply)

    def tick(self, state: RunState) -> None:
        """End the round if there is nobody left to wait for."""
        present = self._present
        if present is None:
            return
        awaited = [device for device in present.cohort - present.answered if state.is_willing(device)]
        if not awaited or self._clock() >= present.deadline_s:
            self.end()

    def end(self) -> None:
        """End the round with the answers that are in, if one is under way."""
        if self._present is None:
            return
        self.settle()
        present, self._present = self._present, None
        self._announcements.end("closed")
        self.last = self._store.end_evaluation(present.number)
        self._observer.note(
            f"evaluation {present.number}: {len(present.answered)} of {len(present.cohort)} devices answered; "
            f"{_describe(self.last)}"
        )


def _describe(found: EvaluationRound) -> str:
    """What an evaluation round came to, in words."""
    texts = shown(found.figures, GLOBAL_PREFIX)
    if texts is None:
        return "none had samples to evaluate on"
    kind = "accuracy" if f"{GLOBAL_PREFIX}accuracy" in found.figures else "RMSE"
    return (
        f"{kind} {texts[0]} on {found.figures['eval_samples']:.0f} samples, {texts[1]} over the worst tenth of devices"
    )
