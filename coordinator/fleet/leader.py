"""The main loop of a run, in one thread: messages, ticks, shutdown.

Other modules do a round's work. `intake.py` turns messages into events; `round_driver.py` feeds them to the pure state
machine (rounds/state_machine.py); `round_effects.py` and `update_effects.py` carry out its commands.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.fleet.activities import Activities
from sparsyedge.coordinator.fleet.announcements import Announcements
from sparsyedge.coordinator.fleet.blob_store import BlobStore
from sparsyedge.coordinator.fleet.device_watch import DeviceWatch
from sparsyedge.coordinator.fleet.evaluation_rounds import EvaluationRounds
from sparsyedge.coordinator.fleet.intake import Intake
from sparsyedge.coordinator.fleet.live_file import LiveFile
from sparsyedge.coordinator.fleet.offer_proofs import OfferProofs
from sparsyedge.coordinator.fleet.plan import plan_of
from sparsyedge.coordinator.fleet.publisher import Publisher
from sparsyedge.coordinator.fleet.refusals import Refusals
from sparsyedge.coordinator.fleet.reports import Reports
from sparsyedge.coordinator.fleet.revoked_devices import RevokedDevices
from sparsyedge.coordinator.fleet.round_driver import RoundDriver
from sparsyedge.coordinator.fleet.round_effects import RoundEffects
from sparsyedge.coordinator.fleet.run_key import RunKey
from sparsyedge.coordinator.fleet.task_watch import TaskWatch
from sparsyedge.coordinator.fleet.update_effects import UpdateEffects
from sparsyedge.coordinator.fleet.uploads import Uploads
from sparsyedge.coordinator.fleet.waiting_notes import WaitingNotes
from sparsyedge.coordinator.model.run_model import RunModel
from sparsyedge.coordinator.record.device_evaluations import EvaluationRound
from sparsyedge.coordinator.record.observer import Observer
from sparsyedge.coordinator.record.store import RunOutcome, Store
from sparsyedge.coordinator.rounds import events
from sparsyedge.coordinator.rounds.cohort import FROM_RECORDS
from sparsyedge.coordinator.rounds.progress import Progress
from sparsyedge.coordinator.rounds.stages import Waiting
from sparsyedge.coordinator.rounds.state_machine import restore
from sparsyedge.edge.errors import RunError, SparsyedgeError
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.protocol.channel import Channel, Connected
from sparsyedge.edge.protocol.topics import Topics

__all__ = ["Leader"]

log = logging.getLogger(__name__)

POLL_S = 0.25
BUSY_POLL_S = 0.002
TICK_S = 1.0
TOUCH_S = 10.0
LAST_REPORTS_S = 5.0
GATHER_S = 2.0
GATHER_MOST_S = 30.0
"""An evaluation round after the run asks those that are online once nobody new has come for a while."""
TURN_S = 0.05
TURN_MESSAGES = 1000
"""A turn takes what is waiting, within these limits; its updates are made durable together and then acknowledged."""


class Leader:
    """Leads a fleet through one run, starting at the progress in its store; the channel must be open.

    Setting `interrupted` abandons the open round. Every tick calls `check`, which may raise RunError.
    """

    def __init__(
        self,
        config: RunConfig,
        artifacts: Artifacts,
        *,
        link: Channel,
        store: Store,
        model: RunModel,
        observer: Observer,
        interrupted: threading.Event,
        check: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        run_key: RunKey | None = None,
        takes_turns: bool = False,
        blobs: BlobStore | None = None,
        live: LiveFile | None = None,
        evaluates_only: bool = False,
    ) -> None:
        """With `evaluates_only`, it opens no training rounds: the owner calls `evaluate` instead of `lead`."""
        self._link = link
        self._fleet = config.fleet
        self._store = store
        self._interrupted = interrupted
        self._check = check
        self._clock = clock
        topics, progress, uploads = Topics(config.fleet), store.progress(), Uploads()
        if evaluates_only:
            # Whoever goes on with the run takes up its open round.
            progress = replace(progress, open=None)
        self._publisher = publisher = Publisher(link, topics)
        self._run_key = run_key
        self._task_watch = TaskWatch(publisher) if run_key else None
        self._model = model
        seal = {"seal": run_key.seal} if run_key else {}
        self._announcements = announcements = Announcements(
            config, artifacts, publisher, chunk_bytes=link.chunk_bytes, store=blobs, **seal
        )
        self._refusals = refusals = Refusals(store, observer, present_round=lambda: announcements.round, clock=clock)
        self._reports = reports = Reports(config.name, store, announcements, refusals)
        activities = Activities(clock=clock)
        self._notes = notes = WaitingNotes(
            observer,
            activities,
            clock=clock,
            live=live,
            health=link.health,
            workers=lambda: model.pool.pids if model.pool else (),
        )
        self._revoked = RevokedDevices(config)
        self._rounds = rounds = RoundEffects(
            config.rounds,
            store=store,
            model=model.present,
            closing=model.closing,
            observer=observer,
            announcements=announcements,
            uploads=uploads,
            refusals=refusals,
            reports=reports,
            notes=notes,
            clock=clock,
            past=store.past if config.selection in FROM_RECORDS else dict,
        )
        self._effects = updates = UpdateEffects(
            config.name,
            store=store,
            updates=model.updates,
            observer=observer,
            announcements=announcements,
            publisher=publisher,
            uploads=uploads,
            refusals=refusals,
        )
        state = restore(
            plan_of(
                config, artifacts.manifest, first_round=_patient_round(progress, takes_turns), takes_turns=takes_turns
            ),
            model.present.id,
            progress,
            clock(),
            times=store.response_times(),
            conduct=store.quarantines(),
            missed=store.missed(cohort_size=config.cohort_size),
        )
        self._driver = driver = RoundDriver(state, rounds, updates, uploads=uploads, notes=notes, clock=clock)
        self._evaluations = evaluations = EvaluationRounds(
            config,
            store=store,
            model=model.present,
            announcements=announcements,
            publisher=publisher,
            refusals=refusals,
            observer=observer,
            clock=clock,
        )
        self._is_paused = False
        """Whether the user has paused the run; an evaluation round holds it up, too."""
        self._evaluates_only = evaluates_only
        driver.holds = lambda: bool(store.requests() & {"pause", "evaluate"})
        self._devices = DeviceWatch(driver, store, notes, announcements, evaluations, clock=clock)
        self._intake = Intake(
            topics,
            driver=driver,
            devices=self._devices,
            activities=activities,
            uploads=uploads,
            reports=reports,
            evaluations=evaluations,
            refusals=refusals,
            publisher=publisher,
            revoked=self._revoked,
            proofs=OfferProofs(config),
            task_watch=self._task_watch,
        )
        self._ticked_s = self._touched_s = clock()

    def lead(self) -> RunOutcome:
        """Run all rounds; blocks until the run is over. Raises RunError if a round could not complete."""
        self._intake.subscribe(self._link)
        self._store.hold()
        self._notes.tell(self._driver.state)
        self._notes.show(self._driver.state)
        try:
            self._driver.take_up()
            self._driver.settle(is_idle=True)
            while self._driver.outcome is None:
                self._turn()
        except SparsyedgeError:
            # Stop the devices: nobody leads this run any more.
            self._announcements.end("finished")
            self._announcements.clear()
            raise
        finally:
            self._model.close()
        self._take_leave()
        if self._driver.outcome == "failed":
            raise RunError(self._driver.reason)
        return self._driver.outcome

    def evaluate(self) -> EvaluationRound:
        """Lead one evaluation round of the run's present model, and nothing else; blocks until it is over.

        Raises RunError if no device is online.
        """
        self._intake.subscribe(self._link)
        self._store.hold()
        self._driver.feed(events.PauseRequested())
        try:
            self._gather()
            if not self._driver.state.online:
                raise RunError(
                    f"no device of fleet {self._fleet} is online; start devices, and check that they use this broker"
                )
            self._finish_evaluation()
        finally:
            is_over = self._store.run().state not in ("running", "paused")
            self._announcements.end("finished" if is_over else "closed")
            self._announcements.clear()
            self._refusals.flush()
            self._model.close()
        assert self._evaluations.last is not None
        return self._evaluations.last

    def _gather(self) -> None:
        """Hear from the devices that are there: the broker has kept what they said last."""
        until_s = self._clock() + GATHER_S
        last_s = self._clock() + GATHER_MOST_S
        while self._clock() < min(until_s, last_s) and not self._interrupted.is_set():
            before = len(self._driver.state.online)
            self._turn()
            if len(self._driver.state.online) != before:
                until_s = self._clock() + GATHER_S

    def _finish_evaluation(self) -> None:
        """Begin an evaluation round, and wait until it is over or somebody interrupts it."""
        self._evaluations.begin(self._driver.state)
        while self._evaluations.is_under_way and not self._interrupted.is_set():
            self._turn()
        self._evaluations.end()

    def _turn(self) -> None:
        """Handle the messages that are waiting, and tick if it is time."""
        is_idle = self._take_messages()
        for verdict in self._effects.verdicts():
            self._driver.feed(verdict)
        if self._interrupted.is_set() and not self._evaluates_only:
            self._driver.feed(events.Interrupted())
        now_s = self._clock()
        if now_s - self._ticked_s >= TICK_S:
            self._ticked_s = now_s
            self._tick(now_s)
        self._driver.settle(is_idle=is_idle)
        self._evaluations.settle()

    def _take_messages(self) -> bool:
        """Handle messages within the limits of a turn; returns whether none is left."""
        until_s, outcome = math.inf, self._driver.outcome
        for number in range(TURN_MESSAGES):
            if self._driver.outcome != outcome or time.monotonic() >= until_s:
                return False
            message = self._link.receive(0 if number else self._patience_s())
            if message is None:
                return True
            if not number:
                until_s = time.monotonic() + TURN_S
            if isinstance(message, Connected):
                self._publisher.renew()
            else:
                self._intake.take(message)
        return False

    def _patience_s(self) -> float:
        """How long to wait for a message: not for long while workers may answer."""
        return BUSY_POLL_S if self._effects.is_busy else POLL_S

    def _tick(self, now_s: float) -> None:
        self._check()
        for device in self._revoked.refresh(now_s):
            self._devices.shut_out(device)
        if self._run_key and self._run_key.follow_authority():
            self._announcements.sign_again()
        if self._task_watch:
            self._task_watch.defend(now_s)
        self._rounds.note_evaluation()
        self._refusals.flush()
        if now_s - self._touched_s >= TOUCH_S:
            self._touched_s = now_s
            self._store.touch()
        self._notes.remind(self._driver.state, now_s)
        for device in self._store.take_releases():
            self._driver.feed(events.Released(device))
        self._driver.feed((None if self._evaluates_only else self._next_request()) or events.Tick())
        self._attend_evaluation()

    def _attend_evaluation(self) -> None:
        """Begin an evaluation round that somebody asked for once the training round is closed, and end it in time."""
        state = self._driver.state
        if self._evaluations.is_under_way:
            self._evaluations.tick(state)
        elif isinstance(state.stage, Waiting) and state.paused and "evaluate" in self._store.requests():
            self._evaluations.begin(state)

    def _next_request(self) -> events.StopRequested | events.PauseRequested | events.ResumeRequested | None:
        """The user's newest request in the store: stop, pause or resume."""
        state, requests = self._driver.state, self._store.requests()
        if not state.stopping and "stop" in requests:
            return events.StopRequested()
        if self._is_paused != ("pause" in requests):
            self._is_paused = not self._is_paused
            run_state: Literal["paused", "running"] = "paused" if self._is_paused else "running"
            self._store.set_state(run_state)
            log.info("the run is %s", run_state)
        holds = self._is_paused or self._evaluations.is_under_way or "evaluate" in requests
        if state.paused == holds:
            return None
        return events.PauseRequested() if holds else events.ResumeRequested()

    def _take_leave(self) -> None:
        """Tell the devices that the run is over, collect their last cost reports, and leave only the model behind.

        Before that comes the evaluation round that somebody asked for during the last training round.
        """
        self._evaluations.end()
        if "evaluate" in self._store.requests() and not self._interrupted.is_set():
            self._finish_evaluation()
        self._notes.show(self._driver.state)
        self._rounds.finish()
        until_s = self._clock() + LAST_REPORTS_S
        while self._reports.are_missing and not self._interrupted.is_set() and self._clock() < until_s:
            self._turn()
        self._announcements.keep_result()
        self._refusals.flush()


def _patient_round(progress: Progress, takes_turns: bool) -> int:
    """The round that waits for `min_devices`: the run's first.

    Where devices take turns, all of them exist from the start. A coordinator that resumes then waits for them, too,
    and draws the cohort that an undisturbed run would have drawn.
    """
    return max(progress.first_round, progress.closed_round + 1) if takes_turns else progress.first_round
