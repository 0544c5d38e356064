"""The loop of a run: messages to events, events through the rounds, commands to broker, disk and store.

One thread does everything. What a device sends is either understood and handed to the state machine in rounds.py, or
counted as a refusal; nothing that arrives can raise out of the loop.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

from sparsyedge.coordinator import events, inbox
from sparsyedge.coordinator.alarms import Alarms
from sparsyedge.coordinator.bans import BANNED, Bans
from sparsyedge.coordinator.board import Board
from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.deadlines import MOST_S
from sparsyedge.coordinator.events import RefusalKind
from sparsyedge.coordinator.global_model import GlobalModel
from sparsyedge.coordinator.observer import Observer
from sparsyedge.coordinator.outbox import Outbox
from sparsyedge.coordinator.proofs import UNPROVEN, Proofs
from sparsyedge.coordinator.refusals import Refusals
from sparsyedge.coordinator.rounds import advance, restore
from sparsyedge.coordinator.run_key import RunKey
from sparsyedge.coordinator.stages import Closing, Open, Plan, Waiting
from sparsyedge.coordinator.store import RunOutcome, Store
from sparsyedge.coordinator.task_watch import TaskWatch
from sparsyedge.coordinator.uploads import Uploads
from sparsyedge.coordinator.verify import max_update_bytes
from sparsyedge.coordinator.waiting import waits_until
from sparsyedge.edge.artifacts import Artifacts
from sparsyedge.edge.channel import Channel
from sparsyedge.edge.errors import FrameError, RunError, SparsyedgeError
from sparsyedge.edge.link import Connected, Link, Received
from sparsyedge.edge.messages import (
    CHUNK_BYTES,
    MAX_RANGES,
    Accepted,
    Catalogue,
    DeviceStatus,
    Grant,
    Offer,
    Refused,
    Report,
    Topics,
    Wait,
    decode,
)
from sparsyedge.edge.text import one_line

__all__ = ["Leader"]

log = logging.getLogger(__name__)

POLL_S = 0.25
TICK_S = 1.0
TOUCH_S = 10.0
LAST_REPORTS_S = 5.0
REMIND_S = 60.0
"""How often a run that waits says for whom."""
MAX_UPLOAD_BYTES = 32 << 20
"""What all uploads in flight may take together, however many devices there are; half of what the link's inbox holds."""
MIN_UPLOAD_BYTES = 4 << 20
UPLOADS_AT_A_TIME = 4


class Leader:
    """Leads a fleet through one run, from wherever its store says that it is; the link must be open.

    Setting `interrupted` gives up the round that is open; `check` is called now and then and may raise RunError.
    """

    def __init__(
        self,
        config: RunConfig,
        artifacts: Artifacts,
        *,
        link: Channel,
        store: Store,
        model: GlobalModel,
        observer: Observer,
        interrupted: threading.Event,
        check: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        run_key: RunKey | None = None,
    ) -> None:
        self._config = config
        self._link = link
        self._store = store
        self._model = model
        self._observer = observer
        self._clock = clock
        self._topics = Topics(config.fleet)
        self._outbox = Outbox(link, self._topics)
        chunk_bytes = link.chunk_bytes if isinstance(link, Link) else CHUNK_BYTES
        self._task_watch = TaskWatch(self._outbox) if run_key else None
        seal = {"seal": run_key.seal} if run_key else {}
        self._board = Board(config, artifacts, self._outbox, chunk_bytes=chunk_bytes, **seal)
        self._uploads = Uploads()
        self._progress = store.progress()
        self._state = restore(
            _plan(config, artifacts, first_round=self._progress.first_round),
            model.id,
            self._progress,
            clock(),
            times=store.response_times(),
            conduct=store.quarantines(),
            missed=store.missed(cohort_size=config.cohort_size),
        )
        self._refusals = Refusals(store, observer, clock=clock)
        self._opened_s = 0.0
        self._reported: set[str] = set()
        self._unfit: dict[str, str] = {}
        """Why devices do not train, as they last said."""
        self._awaited: set[str] = set()
        self._outcome: RunOutcome | None = None
        self._reason = ""
        self._interrupted = interrupted
        self._check = check
        self._bans = Bans(config)
        self._proofs = Proofs(config)
        self._alarms = Alarms()
        self._ticked_s = self._touched_s = self._reminded_s = clock()

    def lead(self) -> RunOutcome:
        """Go through the rounds; blocks until the run is over. Raises RunError where a round could not be completed."""
        for pattern in (
            self._topics.offer("+"),
            self._topics.report("+"),
            self._topics.upload("+", "+", "+"),
        ):
            # No access list can forbid a device to have these kept: it must be seen.
            self._link.subscribe(pattern, as_published=True)
        for pattern in (self._topics.status("+"), self._topics.catalogue):
            self._link.subscribe(pattern)
        if self._task_watch:
            self._link.subscribe(self._topics.round)
        self._note_waiting()
        try:
            self._go_on()
            while self._outcome is None:
                self._turn()
        except SparsyedgeError:
            # Devices must not go on with a run that nobody leads.
            self._board.end("finished")
            self._board.clear()
            raise
        self._take_leave()
        if self._outcome == "failed":
            raise RunError(self._reason)
        return self._outcome

    def _go_on(self) -> None:
        """Take up a run that was cut short where it was; nothing to do for a new one."""
        stage, opened = self._state.stage, self._progress.open
        if isinstance(stage, Open) and opened is not None:
            now_s = self._clock()
            # A clock that was set meanwhile must not make years of it.
            self._opened_s = now_s - min(MOST_S, max(0.0, time.time() - opened.opened_at))
            command = events.OpenRound(stage.round, stage.cohort, stage.deadline_s)
            left_s = stage.deadline_s - now_s
            self._board.open_round(command, self._model, left_s=left_s, learning_rate=opened.learning_rate)
            self._observer.round_resumed(
                round_number=stage.round,
                rounds=self._state.plan.rounds,
                accepted=len(stage.accepted),
                cohort=stage.cohort,
            )
            self._feed(events.Tick())
        elif isinstance(stage, Closing):
            self._feed(events.ModelReady(self._model.id))

    def _turn(self) -> None:
        """One message, if there is one, and what time brings."""
        message = self._link.receive(POLL_S)
        if isinstance(message, Connected):
            self._outbox.renew()
        elif isinstance(message, Received):
            self._read(message)
        if self._interrupted.is_set():
            self._feed(events.Interrupted())
        now_s = self._clock()
        if now_s - self._ticked_s >= TICK_S:
            self._ticked_s = now_s
            self._tick(now_s)

    def _tick(self, now_s: float) -> None:
        self._check()
        self._shut_out(now_s)
        if self._task_watch:
            self._task_watch.defend(now_s)
        self._refusals.flush()
        if now_s - self._touched_s >= TOUCH_S:
            self._touched_s = now_s
            self._store.touch()
        if now_s - self._reminded_s >= REMIND_S:
            self._reminded_s = now_s
            self._remind(now_s)
        for device in self._store.take_releases():
            self._feed(events.Released(device))
        requests = self._store.requests()
        if not self._state.stopping and "stop" in requests:
            self._feed(events.StopRequested())
        elif self._state.paused != ("pause" in requests):
            self._state_changed("paused" if "pause" in requests else "running")
            self._feed(events.PauseRequested() if "pause" in requests else events.ResumeRequested())
        else:
            self._feed(events.Tick())

    def _shut_out(self, now_s: float) -> None:
        """Count devices that were revoked as gone: the broker lets them say nothing any more, not even that."""
        for device in self._bans.refresh(now_s):
            if device in self._state.online:
                gone = DeviceStatus(state="offline", boot_id=self._state.online[device])
                self._note_status(inbox.StatusChanged(device, gone))

    def _state_changed(self, state: Literal["paused", "running"]) -> None:
        self._store.set_state(state)
        log.info("the run is %s", state)

    def _take_leave(self) -> None:
        """Tell the devices that the run is over, hear what their last round cost, and clear the broker."""
        self._board.end("finished")
        until_s = self._clock() + LAST_REPORTS_S
        while self._awaited - self._reported and not self._interrupted.is_set() and self._clock() < until_s:
            self._turn()
        self._board.clear()
        self._refusals.flush()

    # ---- messages in -------------------------------------------------------------------------------------------------

    def _read(self, received: Received) -> None:
        if received.topic == self._topics.catalogue:
            self._take_over(received)
            return
        if received.topic == self._topics.round:
            if self._task_watch:
                self._task_watch.note(received.payload, retained=received.retained)
            return
        message = inbox.read(self._topics, received)
        if message is not None and message.device in self._bans:
            self._count_refusal(message.device, RefusalKind.REVOKED, BANNED)
            return
        match message:
            case inbox.StatusChanged():
                self._note_status(message)
            case inbox.OfferMade(device, offer):
                if self._is_proven(device, offer):
                    event = events.OfferReceived(
                        device=device,
                        run=offer.run,
                        round=offer.round,
                        base=offer.base,
                        update=offer.update.sha256,
                        bytes=offer.update.bytes,
                    )
                    self._feed(event, offer)
            case inbox.Chunk() as chunk:
                self._put_chunk(chunk)
            case inbox.Reported(device, report):
                self._note_report(device, report)
            case inbox.Kept(device, topic):
                self._outbox.forget(topic)
                self._count_refusal(device, RefusalKind.KEPT, "had the broker keep a message that only passes through")
            case inbox.Garbage(device, reason):
                self._count_refusal(device, RefusalKind.UNREADABLE, reason)
            case None:
                log.debug("nothing to do about a message on %s", received.topic)

    def _is_proven(self, device: str, offer: Offer) -> bool:
        """Whether an offer is the device's own. A forged one is counted and not answered.

        The answer would reach the device itself, which may have made the same update: it would drop it.
        """
        if self._proofs.holds(device, offer):
            return True
        self._count_refusal(device, RefusalKind.FORGED, UNPROVEN, round_number=offer.round)
        return False

    def _take_over(self, received: Received) -> None:
        """Clear what another coordinator has left; what comes without having been kept is our own word."""
        if not received.retained or not received.payload:
            return
        try:
            self._outbox.take_over(decode(received.payload, Catalogue))
        except FrameError as error:
            log.warning("what an earlier coordinator has left on the broker is unknown: %s", error)

    def _note_status(self, message: inbox.StatusChanged) -> None:
        device, status = message.device, message.status
        before = self._state.online.get(device)
        if status.state == "offline":
            self._feed(events.DeviceOffline(device, status.boot_id))
        elif status.unfit:
            self._feed(events.DeviceUnfit(device, status.boot_id, status.unfit_round))
        else:
            self._feed(events.DeviceOnline(device, status.boot_id))
        came_or_went = self._state.online.get(device) != before
        if not came_or_went and status.state == "offline" and before is not None:
            return  # the last will of an earlier start
        if came_or_went or self._unfit.get(device, "") != status.unfit:
            self._note_fitness(device, status)
            self._store.note_device(device, status)
            if came_or_went:
                log.info("device %s is %s", device, status.state)
            self._note_waiting()
        self._note_alarm(device, status)

    def _note_alarm(self, device: str, status: DeviceStatus) -> None:
        alarm = self._alarms.note(device, status, self._clock())
        if alarm is not None:
            self._store.note_alarm(device, alarm)
            log.warning("device %s: %s", device, alarm or "nothing is wrong about it any more")

    def _note_fitness(self, device: str, status: DeviceStatus) -> None:
        if self._unfit.pop(device, "") != status.unfit and status.unfit:
            self._observer.device_unfit(device=device, reason=status.unfit)
        if status.unfit:
            self._unfit[device] = status.unfit

    def _put_chunk(self, chunk: inbox.Chunk) -> None:
        upload = self._uploads.get(chunk.device, chunk.update)
        if upload is None:  # repeated by the broker after the update was complete, or never granted
            return
        try:
            new = upload.assembly.put(chunk.index, chunk.content)
        except FrameError as error:
            self._count_refusal(chunk.device, RefusalKind.UNREADABLE, str(error))
            return
        if upload.assembly.complete:
            self._feed(events.UploadComplete(chunk.device, chunk.update))
        elif new:
            self._feed(events.ChunkReceived(chunk.device))

    def _note_report(self, device: str, report: Report) -> None:
        if report.run != self._config.name or not self._store.add_report(device, report):
            reason = f"report on round {report.round} of run {report.run}: no update was accepted"
            self._count_refusal(device, RefusalKind.REPORT, reason)
        elif report.round == self._board.round:
            self._reported.add(device)

    def _note_waiting(self) -> None:
        stage, plan = self._state.stage, self._state.plan
        if isinstance(stage, Waiting):
            needed = plan.devices_to_open(stage.round)
            self._observer.waiting(
                round_number=stage.round, online=len(self._state.ready), needed=needed, unfit=dict(self._unfit)
            )

    def _remind(self, now_s: float) -> None:
        """Say again for whom the run waits."""
        self._note_waiting()
        stage = self._state.stage
        if isinstance(stage, Open):
            awaited = {device: self._doing(device) for device in stage.cohort if device not in stage.accepted}
            until_s = min(stage.deadline_s, waits_until(self._state, stage))
            self._observer.awaiting(round_number=stage.round, awaited=awaited, left_s=until_s - now_s)

    def _doing(self, device: str) -> str:
        if device in self._state.unfit:
            return "unfit"
        return "training" if device in self._state.online else "offline"

    # ---- events and commands -----------------------------------------------------------------------------------------

    def _feed(self, event: events.Event, offer: Offer | None = None) -> None:
        """Let the rounds decide about the event and what follows from it; `offer` is what a grant would be for."""
        before = self._state.stage
        pending = deque([event])
        while pending:
            self._state, commands = advance(self._state, pending.popleft(), self._clock())
            for command in commands:
                follows = self._execute(command, offer)
                if follows is not None:
                    pending.append(follows)
        stage = self._state.stage
        self._uploads.keep_only(stage.granted if isinstance(stage, Open) else {})
        if stage != before:
            self._note_waiting()

    def _execute(self, command: events.Command, offer: Offer | None) -> events.Event | None:
        match command:
            case events.OpenRound():
                self._open_round(command)
            case events.ExtendRound():
                self._extend_round(command)
            case events.ReplaceMember():
                self._replace_member(command)
            case events.Quarantine():
                self._quarantine(command)
            case events.AskToWait():
                if offer is not None:
                    self._ask_to_wait(command, offer)
            case events.GrantUpload():
                if offer is not None:
                    self._grant(command.device, offer)
            case events.VerifyUpdate():
                return self._verify(command)
            case events.Accept():
                self._accept(command)
            case events.Refuse():
                self._refuse(command)
            case events.CloseRound():
                return self._close_round(command)
            case events.FinishRun():
                done = self._state.closed_round == self._config.rounds
                self._outcome = "finished" if done else "stopped"
            case events.FailRun():
                self._outcome, self._reason = "failed", command.reason
        return None

    def _open_round(self, command: events.OpenRound) -> None:
        now_s = self._clock()
        self._opened_s = self._reminded_s = now_s
        self._awaited.clear()
        self._reported.clear()
        rate = self._board.learning_rate(command.round)
        self._store.open_round(
            command.round,
            base=self._model.id,
            base_nonzeros=self._model.nonzeros,
            learning_rate=rate,
            cohort=command.cohort,
        )
        self._board.open_round(command, self._model, left_s=command.deadline_s - now_s)
        self._observer.round_opened(
            round_number=command.round, rounds=self._config.rounds, cohort=command.cohort, learning_rate=rate
        )

    def _extend_round(self, command: events.ExtendRound) -> None:
        self._store.extend_round(command.round, cohort=command.cohort, extensions=command.extension)
        self._board.extend_round(command.cohort, left_s=command.deadline_s - self._clock())
        self._observer.round_extended(round_number=command.round, cohort=command.cohort, extension=command.extension)

    def _replace_member(self, command: events.ReplaceMember) -> None:
        self._store.replace_member(command.round, cohort=command.cohort)
        self._board.extend_round(command.cohort, left_s=command.deadline_s - self._clock())
        self._observer.member_replaced(round_number=command.round, device=command.device, substitute=command.substitute)

    def _grant(self, device: str, offer: Offer) -> None:
        upload = self._uploads.begin(device, offer)
        missing = upload.assembly.missing()[:MAX_RANGES]
        self._outbox.reply(device, Grant(run=offer.run, round=offer.round, update=upload.update, missing=missing))

    def _verify(self, command: events.VerifyUpdate) -> events.Event | None:
        upload = self._uploads.get(command.device, command.update)
        if upload is None:
            return None
        try:
            self._model.verify(upload.assembly.content(), upload.offer.round)
        except FrameError as error:
            return events.UpdateInvalid(command.device, command.update, one_line(str(error)))
        return events.UpdateVerified(command.device, command.update)

    def _accept(self, command: events.Accept) -> None:
        upload = None if command.again else self._uploads.get(command.device, command.update)
        if upload is not None:
            self._model.accept(command.device, upload.offer, upload.assembly.content())
            self._note_accepted(command, upload.offer.update.bytes)
        reply = Accepted(run=self._config.name, round=command.round, update=command.update)
        self._outbox.reply(command.device, reply)

    def _note_accepted(self, command: events.Accept, update_bytes: int) -> None:
        self._observer.update_accepted(
            round_number=command.round,
            device=command.device,
            update_bytes=update_bytes,
            accepted=len(self._store.samples(command.round)),
            cohort=len(self._board.cohort),
        )

    def _ask_to_wait(self, command: events.AskToWait, offer: Offer) -> None:
        reason = one_line(command.reason)
        self._outbox.reply(command.device, Wait(run=offer.run, round=offer.round, update=command.update, reason=reason))

    def _quarantine(self, command: events.Quarantine) -> None:
        self._store.note_quarantine(command.device, until_round=command.until_round, reason=command.reason)
        self._observer.device_quarantined(device=command.device, until_round=command.until_round, reason=command.reason)

    def _refuse(self, command: events.Refuse) -> None:
        reason = one_line(command.reason)
        reply = Refused(run=command.run, round=command.round, update=command.update, reason=reason)
        self._outbox.reply(command.device, reply)
        self._count_refusal(command.device, command.kind, command.reason, round_number=command.round)

    def _close_round(self, command: events.CloseRound) -> events.Event:
        self._board.end("closed")
        self._awaited = set(command.accepted)
        for device, reason in self._uploads.unfinished().items():
            self._count_refusal(device, RefusalKind.UNFINISHED, reason, round_number=command.round)
        self._refusals.flush()
        self._model.close_round(command.round, command.accepted, elapsed_s=lambda: self._clock() - self._opened_s)
        self._observer.round_closed(self._store.rounds()[-1])
        return events.ModelReady(self._model.id)

    # ---- small things ------------------------------------------------------------------------------------------------

    def _count_refusal(self, device: str, kind: RefusalKind, reason: str, *, round_number: int | None = None) -> None:
        """Count against the round that the device named, if that has been open; else against the present one."""
        present = self._board.round
        counted = round_number if round_number is not None and round_number <= present else present
        self._refusals.count(device, kind, reason, round_number=counted)


def _plan(config: RunConfig, artifacts: Artifacts, *, first_round: int) -> Plan:
    largest = max_update_bytes(artifacts.manifest)
    return Plan(
        run=config.name,
        rounds=config.rounds,
        cohort_size=config.cohort_size,
        min_updates=config.updates_needed,
        min_devices=config.devices_needed,
        deadline_s=config.deadline_s,
        seed=config.seed,
        max_update_bytes=largest,
        # Room for several, so that one that trickles does not stop the others.
        upload_bytes=min(MAX_UPLOAD_BYTES, max(MIN_UPLOAD_BYTES, UPLOADS_AT_A_TIME * largest)),
        policy=config.selection,
        over_selection=config.over_selection,
        shares=artifacts.manifest.method.shares,
        first_round=first_round,
        takes_turns=config.simulation is not None,
    )
