"""The device's main loop: joins the fleet, sends one update per round, and stays until told to leave.

A round's phases on a device: download, evaluate if it has data for that, train, prune and encode (update_maker.py), and
upload (delivery.py). We record the cost of each. The device looks at its data before every round, and the data then
stays as it is until the round is over. The coordinator may close the round between any two steps; the device then
drops its work.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

from sparsyedge.edge.device.board_sign import BoardSign
from sparsyedge.edge.device.courier import Abandoned, Courier
from sparsyedge.edge.device.decisions import Action, decide
from sparsyedge.edge.device.delivery import Delivery
from sparsyedge.edge.device.equipment import Equipment
from sparsyedge.edge.device.evaluation_round import EvaluationRound
from sparsyedge.edge.device.fitness import RETRY_FAILED_S
from sparsyedge.edge.device.job_notices import JobNotices
from sparsyedge.edge.device.limits import Limits
from sparsyedge.edge.device.notify import Supervisor
from sparsyedge.edge.device.readiness import Readiness
from sparsyedge.edge.device.renewal import Renewal
from sparsyedge.edge.device.round_watch import RoundWatch
from sparsyedge.edge.device.succession_watch import SuccessionWatch
from sparsyedge.edge.device.update_maker import UpdateMaker
from sparsyedge.edge.device.waiting_log import WaitingLog, between_rounds
from sparsyedge.edge.errors import ArtifactError, ConfigError, DataError, FrameError, LinkError, SparsyedgeError
from sparsyedge.edge.protocol.messages import RoundTask
from sparsyedge.edge.training.trainer import JobCancelled

__all__ = ["Agent", "Chores"]

log = logging.getLogger(__name__)

RETRY_S = 5.0
PATIENT_RETRIES = 3
"""Failed fetches or deliveries in a row before the device tells the coordinator."""
REFRESH_S = 30.0
"""How often a device asks for the task and repeats its status: brokers silently drop messages when a queue is full."""
LOOK_S = 5.0
"""How long a device that is kept from training waits before it looks at its data again."""


WORK = (Action.TRAIN, Action.EVALUATE)


class Chores(Protocol):
    """What a device does beside its rounds, and never in their way; see edge/upgrade."""

    @property
    def wants_restart(self) -> bool:
        """Whether the device should end now and be started again."""

    def work(self) -> None:
        """Do a little; called again and again between rounds. Does not wait."""

    def hold(self) -> None:
        """Stop working: a round begins."""

    def note_accepted(self) -> None:
        """The coordinator has accepted an update of this process."""


class Agent:
    """Takes part in rounds; `run` blocks until the agent is stopped or has nothing more to do."""

    def __init__(
        self,
        courier: Courier,
        equipment: Equipment,
        *,
        limits: Limits | None = None,
        supervisor: Supervisor | None = None,
        notices: JobNotices | None = None,
        sign: BoardSign | None = None,
        until_finished: bool = False,
        renewal: Renewal | None = None,
        succession: SuccessionWatch | None = None,
        chores: Chores | None = None,
    ) -> None:
        """With `until_finished`, the device leaves when the run is over; without `notices`, it works in silence.

        `renewal` keeps its certificate fresh, and `succession` follows the fleet's authority to the next.
        """
        self._succession = succession
        self._renewal = renewal
        self._courier = courier
        self._holder = equipment.holder
        self._models = equipment.models
        self._outbox = equipment.files.outbox
        self._supervisor = supervisor or Supervisor({})
        self._sign = sign or BoardSign({})
        self._until_finished = until_finished
        self._chores = chores
        self._stopped = threading.Event()
        self._data = equipment.data
        self._power = equipment.power
        self._notices = notices = notices or JobNotices()
        self._watch = RoundWatch(
            courier, equipment.data, supervisor=self._supervisor, stopped=self._stopped, notices=notices
        )
        self._readiness = Readiness(courier, equipment.data, limits)
        self._maker = UpdateMaker(courier, equipment, self._watch, keep_going=self._keep_going, notices=notices)
        self._waiting = waiting = WaitingLog(self._supervisor)
        self._delivery = Delivery(
            courier, self._outbox, equipment.power.meter, self._watch, notices=notices, waiting=waiting
        )
        self._evaluation = EvaluationRound(courier, equipment, self._watch, keep_going=self._keep_going)
        self._looked: tuple[str, float] = ("", -LOOK_S)
        """The run and round, as text, before which the data was last looked at, and when."""
        self._failures = 0
        """Failed fetches or deliveries in a row."""
        self._trouble = ""
        """Why the last attempt at a round failed; logged once."""
        self._over: str | None = None
        """The last run whose end was logged."""

    def stop(self) -> None:
        """Make `run` return soon; safe in a signal handler."""
        self._stopped.set()

    def run(self) -> None:
        """Take part in rounds; the courier must have joined over an open link."""
        if self._models:
            self._models.begin()
        try:
            refreshed_s = time.monotonic()
            while not self._stopped.is_set() and self._take_turn():
                if time.monotonic() - refreshed_s > REFRESH_S:
                    self._courier.refresh()
                    refreshed_s = time.monotonic()
                    if self._renewal:
                        self._renewal.check()
            if self._models and not self._stopped.is_set():
                self._models.finish()
        finally:
            if self._models:
                self._models.stop()
            self._notices.leave()
            self._courier.leave()

    def answer(self) -> None:
        """Do what the current task asks for, then return instead of waiting for the next one.

        For a process that runs many devices in turn.
        """
        while (task := self._courier.task) is not None and not self._stopped.is_set():
            action = self._decide(task)
            if action not in (Action.TRAIN, Action.OFFER, Action.EVALUATE) or self._readiness.has_declined(task):
                return
            self._take_part(task, action)

    def _take_turn(self) -> bool:
        """Do what the current task asks for, or wait a moment for the next one; False when it is time to leave."""
        self._supervisor.alive()
        self._notices.poll()
        if self._succession:
            # Between rounds: a round that has begun ends with the keys that it began with.
            self._succession.work()
        task = self._courier.task
        self._note_end(task)
        action = self._decide(task) if task else Action.WAIT
        if task and action in (Action.WAIT, Action.LEAVE):
            self._follow_model(task)
            self._maker.tell_classes(task, keep_going=self._goes_on)
        if task is not None and action in WORK:
            self._look_at_data(f"{task.run} {task.round} {task.evaluation or 0}")
            action = self._decide(task)
        elif self._readiness.waits_for_data:
            self._look_at_data("")
        if not self._readiness.check() and action in WORK:
            self._note_unfit()
            self._sign.show("paused", self._readiness.reason)
            self._courier.listen()
            return self._do_chores()
        if task is None or action is Action.WAIT:
            self._sign.show("waiting", _awaited(task))
            if task is None or task.state != "open":
                # The next open round needs a new answer, even if a new run reuses an old name.
                self._delivery.settled = None
            self._note_waiting(task)
            self._courier.listen()
            return self._do_chores()
        if action is Action.LEAVE:
            return False
        self._waiting.over()
        self._take_part(task, action)
        return True

    def _do_chores(self) -> bool:
        """Do a little beside the rounds; False if the device is to restart for it."""
        if self._chores is None:
            return True
        self._chores.work()
        return not self._chores.wants_restart

    def _note_waiting(self, task: RoundTask | None) -> None:
        """Say what a device with nothing to do waits for."""
        if self._courier.unfit_reason:
            self._note_unfit()
            return
        is_member = task is not None and self._courier.device in task.cohort
        self._waiting.note(*between_rounds(task, self._courier.health(), is_member=is_member))

    def _note_unfit(self) -> None:
        self._waiting.note("unfit", f"waiting until this device may train: {self._courier.unfit_reason}")

    def _look_at_data(self, before: str) -> None:
        """Look at the data before a round, and again after a while if the device still waits to train."""
        known, looked_s = self._looked
        now_s = time.monotonic()
        if before == known and now_s - looked_s < LOOK_S:
            return
        self._looked = before, now_s
        if self._data.look():
            self._readiness.data_changed()
            self._courier.say_samples(len(self._data))

    def _note_end(self, task: RoundTask | None) -> None:
        """Log once that a run is over, and what this device does next."""
        over = task.run if task is not None and task.state == "finished" else None
        if task is not None and over is not None and over != self._over:
            end = "is finished" if task.round == task.rounds else "was ended early"
            then = "leaving" if self._until_finished else "waiting for the next run"
            log.info("run %s %s, after round %d of %d; %s", over, end, task.round, task.rounds, then)
        self._over = over

    def _decide(self, task: RoundTask) -> Action:
        pending = self._outbox.pending
        return decide(
            task,
            device=self._courier.device,
            key=self._watch.key(task),
            settled=self._delivery.settled,
            pending=pending.key if pending else None,
            until_finished=self._until_finished,
        )

    def _take_part(self, task: RoundTask, action: Action) -> None:
        """Try one round once; a failure is logged in one line, and the device stays in the fleet."""
        if self._chores is not None:
            self._chores.hold()
        self._notices.begin(task)
        try:
            if action is Action.EVALUATE:
                self._sign.show("training", f"evaluating after {_round_of(task)}")
                self._evaluate(task)
            else:
                if action is Action.TRAIN:
                    self._sign.show("training", f"training in {_round_of(task)}")
                    self._make_update(task)
                self._sign.show("sending", f"sending its update of {_round_of(task)}")
                if self._delivery.deliver(task):
                    self._data.reported()
                    if self._chores is not None:
                        self._chores.note_accepted()
            self._failures, self._trouble = 0, ""
            self._follow_model(task)
        except (Abandoned, JobCancelled):
            log.info("round %d is over, or this device is to stop; its work is dropped", task.round)
        except (LinkError, FrameError) as error:
            self._retry(task, error)
        except (ArtifactError, ConfigError, DataError) as error:
            # Later rounds of this run would fail the same way, so decline them all.
            log.error("round %d: %s; taking no part in run %s", task.round, error, task.run)
            self._readiness.decline_run(task, error)
        except (SparsyedgeError, OSError) as error:
            log.error(
                "round %d: %s; trying again in %g s if the round is still open", task.round, error, RETRY_FAILED_S
            )
            self._readiness.decline_round(task, error)
        finally:
            self._notices.end()

    def _follow_model(self, task: RoundTask) -> None:
        """Keep the model for predictions in step with the task, and tell the coordinator once that is done."""
        self._maker.follow_model(task, keep_going=self._goes_on)
        if self._models and self._models.news():
            self._courier.say_hello()

    def _goes_on(self) -> bool:
        """Whether work between rounds may go on; feeds the watchdog."""
        self._supervisor.alive()
        return not self._stopped.is_set()

    def _make_update(self, task: RoundTask) -> None:
        # Simulated devices share one session.
        with self._holder.lock:
            log.info("run %s, round %d of %d: taking part", task.run, task.round, task.rounds)
            self._delivery.resolve_doubt(task)
            self._power.begin_round(task)
            self._maker.make(task)

    def _evaluate(self, task: RoundTask) -> None:
        with self._holder.lock:
            log.info("run %s, after round %d of %d: evaluating", task.run, task.round, task.rounds)
            self._power.begin_round(task)
            self._evaluation.answer(task)
        self._delivery.settled = self._watch.key(task)

    def _keep_going(self, task: RoundTask) -> bool:
        self._courier.drain()
        # A device that gets too hot keeps its place in the round and continues once it has cooled down.
        while not self._readiness.check() and self._watch.is_open(task):
            self._note_unfit()
            self._sign.show("paused", self._readiness.reason)
            self._courier.listen()
        self._sign.show("training", f"training in {_round_of(task)}")
        self._waiting.over()
        return self._watch.is_open(task)

    def _retry(self, task: RoundTask, error: SparsyedgeError) -> None:
        """Try again soon, since most transport faults pass; after a few failures, tell the coordinator."""
        if str(error) != self._trouble:
            log.warning("round %d: %s; trying again", task.round, error)
        self._sign.show("trouble", str(error))
        self._trouble = str(error)
        self._failures += 1
        if self._failures >= PATIENT_RETRIES:
            self._failures = 0
            self._readiness.decline_round(task, error)
        else:
            self._pause(task)

    def _pause(self, task: RoundTask) -> None:
        until_s = time.monotonic() + RETRY_S
        while self._watch.is_open(task) and time.monotonic() < until_s:
            self._courier.listen()


def _round_of(task: RoundTask) -> str:
    return f"round {task.round} of {task.rounds} of run {task.run}"


def _awaited(task: RoundTask | None) -> str:
    if task is None or task.state == "finished":
        return "waiting for a run"
    return f"waiting for the next round, after {_round_of(task)}"
