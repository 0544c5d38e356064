"""The device's main loop: joins the fleet, sends one update per round, and stays until told to leave.

A round has five phases on a device: download, train, prune and encode (update_maker.py), and upload (delivery.py). We
record the cost of each. The coordinator may close the round between any two steps; the device then drops its work.
"""

from __future__ import annotations

import logging
import threading
import time

from sparsyedge.edge.device.courier import Abandoned, Courier
from sparsyedge.edge.device.decisions import Action, decide
from sparsyedge.edge.device.delivery import Delivery
from sparsyedge.edge.device.equipment import Equipment
from sparsyedge.edge.device.fitness import RETRY_FAILED_S
from sparsyedge.edge.device.limits import Limits
from sparsyedge.edge.device.notify import Supervisor
from sparsyedge.edge.device.readiness import Readiness
from sparsyedge.edge.device.round_watch import RoundWatch
from sparsyedge.edge.device.update_maker import UpdateMaker
from sparsyedge.edge.errors import ArtifactError, ConfigError, DataError, FrameError, LinkError, SparsyedgeError
from sparsyedge.edge.protocol.messages import RoundTask
from sparsyedge.edge.training.trainer import JobCancelled

__all__ = ["Agent"]

log = logging.getLogger(__name__)

RETRY_S = 5.0
PATIENT_RETRIES = 3
"""Failed fetches or deliveries in a row before the device tells the coordinator."""
REFRESH_S = 30.0
"""How often a device asks for the task and repeats its status: brokers silently drop messages when a queue is full."""


class Agent:
    """Takes part in rounds; `run` blocks until the agent is stopped or has nothing more to do."""

    def __init__(
        self,
        courier: Courier,
        equipment: Equipment,
        *,
        limits: Limits | None = None,
        supervisor: Supervisor | None = None,
        until_finished: bool = False,
    ) -> None:
        """With `until_finished`, the device leaves when the run is over."""
        self._courier = courier
        self._holder = equipment.holder
        self._outbox = equipment.files.outbox
        self._supervisor = supervisor or Supervisor({})
        self._until_finished = until_finished
        self._stopped = threading.Event()
        self._watch = RoundWatch(courier, equipment.data.digest, supervisor=self._supervisor, stopped=self._stopped)
        self._readiness = Readiness(courier, limits)
        self._maker = UpdateMaker(courier, equipment, self._watch, keep_going=self._keep_going)
        self._delivery = Delivery(courier, self._outbox, equipment.power.meter, self._watch)
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
        try:
            refreshed_s = time.monotonic()
            while not self._stopped.is_set() and self._take_turn():
                if time.monotonic() - refreshed_s > REFRESH_S:
                    self._courier.refresh()
                    refreshed_s = time.monotonic()
        finally:
            self._courier.leave()

    def answer(self) -> None:
        """Do what the current task asks for, then return instead of waiting for the next one.

        For a process that runs many devices in turn.
        """
        while (task := self._courier.task) is not None and not self._stopped.is_set():
            action = self._decide(task)
            if action not in (Action.TRAIN, Action.OFFER) or self._readiness.has_declined(task):
                return
            self._take_part(task, action)

    def _take_turn(self) -> bool:
        """Do what the current task asks for, or wait a moment for the next one; False when it is time to leave."""
        self._supervisor.alive()
        task = self._courier.task
        self._note_end(task)
        action = self._decide(task) if task else Action.WAIT
        if not self._readiness.check() and action is Action.TRAIN:
            self._courier.listen()
        elif task is None or action is Action.WAIT:
            if task is None or task.state != "open":
                # The next open round needs a new answer, even if a new run reuses an old name.
                self._delivery.settled = None
            self._courier.listen()
        elif action is Action.LEAVE:
            return False
        else:
            self._take_part(task, action)
        return True

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
        try:
            if action is Action.TRAIN:
                self._make_update(task)
            self._delivery.deliver(task)
            self._failures, self._trouble = 0, ""
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

    def _make_update(self, task: RoundTask) -> None:
        # Simulated devices share one session.
        with self._holder.lock:
            log.info("run %s, round %d of %d: taking part", task.run, task.round, task.rounds)
            self._delivery.resolve_doubt(task)
            self._maker.make(task)

    def _keep_going(self, task: RoundTask) -> bool:
        self._courier.drain()
        # A device that gets too hot keeps its place in the round and continues once it has cooled down.
        while not self._readiness.check() and self._watch.is_open(task):
            self._courier.listen()
        return self._watch.is_open(task)

    def _retry(self, task: RoundTask, error: SparsyedgeError) -> None:
        """Try again soon, since most transport faults pass; after a few failures, tell the coordinator."""
        if str(error) != self._trouble:
            log.warning("round %d: %s; trying again", task.round, error)
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
