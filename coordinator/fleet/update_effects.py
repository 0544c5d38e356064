"""Carries out the state machine's commands about updates, from the offer to the acknowledgement.

An update is acknowledged when it is durable, and a disk takes its time for that. So updates that arrive together share
one sync: `accept` writes them, and `settle` makes them durable and answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec import UNSET, UnsetType

from sparsyedge.coordinator.fleet.announcements import Announcements
from sparsyedge.coordinator.fleet.publisher import Publisher
from sparsyedge.coordinator.fleet.refusals import Refusals
from sparsyedge.coordinator.fleet.uploads import Uploads
from sparsyedge.coordinator.model.round_updates import RoundUpdates
from sparsyedge.coordinator.record.observer import Observer
from sparsyedge.coordinator.record.store import Store
from sparsyedge.coordinator.rounds.events import (
    Accept,
    AskToWait,
    GrantUpload,
    Refuse,
    UpdateInvalid,
    UpdateVerified,
    VerifyUpdate,
)
from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.protocol.messages import Accepted, Grant, Refused, Wait
from sparsyedge.edge.text import one_line

__all__ = ["UpdateEffects"]


class _Progress(NamedTuple):
    """The size of an accepted update, and how many of the cohort's updates are in with it."""

    update_bytes: int
    accepted: int
    cohort: int


class UpdateEffects:
    """Answers offers, verifies uploads and records updates."""

    def __init__(
        self,
        run: str,
        *,
        store: Store,
        updates: RoundUpdates,
        observer: Observer,
        announcements: Announcements,
        publisher: Publisher,
        uploads: Uploads,
        refusals: Refusals,
    ) -> None:
        self._run = run
        self._store = store
        self._updates = updates
        self._observer = observer
        self._announcements = announcements
        self._publisher = publisher
        self._uploads = uploads
        self._refusals = refusals
        self._unanswered: list[tuple[Accept, _Progress | None]] = []
        """Updates to acknowledge; a new one with the progress to report."""
        self._counted = (0, 0)
        """The round of the last accepted update, and how many it has."""

    def grant(self, command: GrantUpload) -> None:
        """Tell the device which chunks to send."""
        offer = command.offer
        upload = self._uploads.begin(command.device, offer)
        missing = upload.assembly.missing()
        reply = Grant(run=offer.run, round=offer.round, update=upload.update, missing=missing)
        self._publisher.reply(command.device, reply)

    def ask_to_wait(self, command: AskToWait) -> None:
        """Tell the device that others go first, and how long it need not ask again."""
        offer, reason = command.offer, one_line(command.reason)
        again_s: float | UnsetType = UNSET if command.again_s is None else command.again_s
        reply = Wait(run=offer.run, round=offer.round, update=offer.update.sha256, reason=reason, again_s=again_s)
        self._publisher.reply(command.device, reply)

    def verify(self, command: VerifyUpdate) -> UpdateVerified | UpdateInvalid | None:
        """Check a complete upload; None if a worker process does, or if the upload is gone."""
        upload = self._uploads.get(command.device, command.update)
        if upload is None:
            return None
        try:
            known = self._updates.verify(upload.offer, upload.assembly.joined(), device=command.device)
        except FrameError as error:
            return UpdateInvalid(command.device, command.update, one_line(str(error)))
        return UpdateVerified(command.device, command.update) if known else None

    @property
    def is_busy(self) -> bool:
        """Whether worker processes check updates, so that `verdicts` may have something to say soon."""
        return self._updates.decoded.is_busy

    def verdicts(self) -> Iterator[UpdateVerified | UpdateInvalid]:
        """What worker processes say about the updates that they have checked."""
        for (device, update), reason in self._updates.decoded.answers():
            yield UpdateInvalid(device, update, one_line(reason)) if reason else UpdateVerified(device, update)

    def accept(self, command: Accept) -> None:
        """Write the update unless it is already recorded; `settle` acknowledges it."""
        upload = None if command.again else self._uploads.get(command.device, command.update)
        progress = None
        if upload is not None:
            self._updates.accept(command.device, upload.offer, upload.assembly.joined())
            progress = _Progress(upload.offer.update.bytes, self._count(command.round), len(self._announcements.cohort))
        self._unanswered.append((command, progress))

    def settle(self) -> None:
        """Make everything durable, then acknowledge the updates that wait for that."""
        self._store.commit()
        unanswered, self._unanswered = self._unanswered, []
        for command, progress in unanswered:
            if progress is not None:
                self._observer.update_accepted(
                    round_number=command.round,
                    device=command.device,
                    update_bytes=progress.update_bytes,
                    accepted=progress.accepted,
                    cohort=progress.cohort,
                )
            reply = Accepted(run=self._run, round=command.round, update=command.update)
            self._publisher.reply(command.device, reply)

    def refuse(self, command: Refuse) -> None:
        """Tell the device the reason and count the refusal."""
        reason = one_line(command.reason)
        reply = Refused(run=command.run, round=command.round, update=command.update, reason=reason)
        self._publisher.reply(command.device, reply)
        self._refusals.count(command.device, command.kind, command.reason, round_number=command.round)

    def _count(self, round_number: int) -> int:
        """How many updates of the round have been accepted, with this one."""
        known, count = self._counted
        self._counted = (round_number, count + 1 if known == round_number else self._store.count_updates(round_number))
        return self._counted[1]
