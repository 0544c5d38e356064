"""The device's state machine: joins the fleet, answers each round with one update, and stays until it is told to leave.

One round on a device is five phases, each with its cost on record: download, train, prune, encode, upload. Between any
two of its steps the coordinator may close the round; the work on it is then dropped.
"""

from __future__ import annotations

import enum
import logging
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from sparsyedge.edge.data import Samples
from sparsyedge.edge.data.classes import fit_to_model
from sparsyedge.edge.device.cache import Cache
from sparsyedge.edge.device.courier import Abandoned, Courier
from sparsyedge.edge.device.energy import EnergyMeter, PhaseRecorder, joules_text, meter_text, peak_rss_mb
from sparsyedge.edge.device.fitness import RETRY_FAILED_S, Fitness, Unfit
from sparsyedge.edge.device.interrupted_job import JobProgress, UnfinishedJob
from sparsyedge.edge.device.limits import Limits
from sparsyedge.edge.device.notify import Supervisor
from sparsyedge.edge.device.outbox import Outbox, Pending, task_key
from sparsyedge.edge.device.task_inputs import TaskInputs
from sparsyedge.edge.errors import (
    ArtifactError,
    ConfigError,
    DataError,
    FrameError,
    LinkError,
    SparsyedgeError,
    TrainingError,
)
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.phase_costs import PhaseCost
from sparsyedge.edge.protocol.chunks import blob_of
from sparsyedge.edge.protocol.messages import Accepted, Offer, Refused, Report, RoundTask
from sparsyedge.edge.tensors import State, Tensors, count_regrown, first_nonfinite
from sparsyedge.edge.training.local_update import finish_update, needs_start, start_state, step_rule
from sparsyedge.edge.training.session import Session
from sparsyedge.edge.training.session_holder import SessionHolder
from sparsyedge.edge.training.trainer import JobCancelled, LocalJob, Trained, train
from sparsyedge.edge.wire.codecs import LOSSLESS
from sparsyedge.edge.wire.error_feedback import Coded, encode_with_feedback, unpack_residual

__all__ = ["Action", "Agent", "decide", "describe"]

log = logging.getLogger(__name__)

RETRY_S = 5.0
PATIENT_RETRIES = 3
"""How often a device fails to fetch or to deliver before it tells the coordinator."""
REFRESH_S = 30.0
"""How often a device asks for the task and repeats its status: brokers drop messages silently when a queue is full."""
VERDICT_S = 10.0
"""How long a device asks what became of an update of an earlier round."""


class Action(enum.Enum):
    """What a task asks of a device."""

    WAIT = "wait"
    TRAIN = "train"
    OFFER = "offer"
    LEAVE = "leave"


def decide(
    task: RoundTask, *, device: str, key: str, settled: str | None, pending: str | None, until_finished: bool
) -> Action:
    """What to do about a task, given its key, that of the last answered one and that of the update on disk."""
    if task.state == "finished":
        return Action.LEAVE if until_finished else Action.WAIT
    if task.state != "open" or device not in task.cohort or key == settled:
        return Action.WAIT
    return Action.OFFER if key == pending else Action.TRAIN


def describe(report: Report) -> str:
    """A report as one line for the log."""
    phases = ", ".join(f"{name} {_cost(cost, report.energy_kind)}" for name, cost in report.phases.items())
    energy = meter_text(report.energy_source, report.energy_kind, hz=report.energy_hz, idle_w=report.idle_w)
    return (
        f"round {report.round}: {phases} (energy {energy}); "
        f"{report.bytes_down} B down, {report.bytes_up} B up; {report.steps} steps, loss {report.loss:.4f}; "
        f"peak RSS {report.peak_rss_mb:.0f} MB"
    )


class Agent:
    """A device at work; `run` blocks until the agent is stopped or has nothing more to do."""

    def __init__(
        self,
        device: str,
        courier: Courier,
        *,
        samples: Samples,
        class_names: tuple[str, ...] = (),
        meter: EnergyMeter,
        idle_w: float | None = None,
        cache: Cache,
        outbox: Outbox,
        holder: SessionHolder,
        job_path: Path | None = None,
        limits: Limits | None = None,
        supervisor: Supervisor | None = None,
        until_finished: bool = False,
        signing_key: str | None = None,
        sign: Callable[[Offer], Offer] = lambda offer: offer,
    ) -> None:
        """`class_names` are what the samples' labels count; empty where the data does not say.

        In a secured fleet, `signing_key` is whose artifacts are trained, and `sign` signs offers.
        """
        self._device = device
        self._courier = courier
        self._samples = samples
        self._data = samples.digest()
        self._class_names = class_names
        self._fitted, self._fitted_to = samples, ""
        """The samples with the labels of the artifacts, and the hash of their manifest."""
        self._meter = meter
        self._idle_w = idle_w
        self._inputs = TaskInputs(courier, cache, signing_key=signing_key)
        self._outbox = outbox
        self._sign = sign
        self._holder = holder
        self._job_path = job_path
        self._limits = limits
        self._supervisor = supervisor or Supervisor({})
        self._until_finished = until_finished
        self._stopped = threading.Event()
        self._settled: str | None = None
        self._fitness = Fitness()
        self._failures = 0
        """In a row, to fetch or to deliver."""
        self._trouble = ""
        """Why the last try at a round was cut short; said once."""
        self._over: str | None = None
        """The run that is over and was spoken of."""

    def stop(self) -> None:
        """Make `run` return soon; safe in a signal handler."""
        self._stopped.set()

    def run(self) -> None:
        """Take part in rounds; the courier has joined over an open link."""
        try:
            refreshed_s = time.monotonic()
            while not self._stopped.is_set() and self._take_turn():
                if time.monotonic() - refreshed_s > REFRESH_S:
                    self._courier.refresh()
                    refreshed_s = time.monotonic()
        finally:
            self._courier.leave()

    def answer(self) -> None:
        """Do what the present task asks for and return when it asks for nothing more, instead of waiting as `run` does.

        For whoever gives turns to many devices.
        """
        while (task := self._courier.task) is not None and not self._stopped.is_set():
            action = self._decide(task)
            if action not in (Action.TRAIN, Action.OFFER) or self._fitness.unfit(task, time.monotonic()):
                return
            self._take_part(task, action)

    def _take_turn(self) -> bool:
        """Do what the current task asks for, or wait a moment for another; False when it is time to leave."""
        self._supervisor.alive()
        task = self._courier.task
        self._note_end(task)
        action = self._decide(task) if task else Action.WAIT
        if not self._is_fit() and action is Action.TRAIN:
            self._courier.listen()
        elif task is None or action is Action.WAIT:
            if task is None or task.state != "open":
                # The next open round is a new question, even where a new run has an old one's name.
                self._settled = None
            self._courier.listen()
        elif action is Action.LEAVE:
            return False
        else:
            self._take_part(task, action)
        return True

    def _note_end(self, task: RoundTask | None) -> None:
        """Say once that a run is over, and what this device does now."""
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
            device=self._device,
            key=self._key(task),
            settled=self._settled,
            pending=pending.key if pending else None,
            until_finished=self._until_finished,
        )

    def _key(self, task: RoundTask) -> str:
        return task_key(task, self._data)

    def _is_open(self, task: RoundTask) -> bool:
        """Whether the fleet still works on this task, and this device with it."""
        # Whatever the device does in a round, it asks this again and again.
        self._supervisor.alive()
        now = self._courier.task
        if self._stopped.is_set() or now is None or now.state != "open":
            return False
        return self._key(now) == self._key(task) and self._device in now.cohort

    def _is_fit(self) -> bool:
        """Whether nothing keeps this device from training; the coordinator learns when that changes, and why."""
        unfit = self._fitness.unfit(self._courier.task, time.monotonic())
        if unfit is None and (reason := self._courier.unreadable or (self._limits and self._limits.breach())):
            unfit = Unfit(reason)
        self._courier.say_fitness(unfit)
        return unfit is None

    def _take_part(self, task: RoundTask, action: Action) -> None:
        """One attempt at one round; whatever goes wrong is one line in the log, and the device stays."""
        try:
            if action is Action.TRAIN:
                self._make_update(task)
            self._deliver(task)
            self._failures, self._trouble = 0, ""
        except (Abandoned, JobCancelled):
            log.info("round %d is over, or this device is to stop; its work is dropped", task.round)
        except (LinkError, FrameError) as error:
            self._retry(task, error)
        except (ArtifactError, ConfigError, DataError) as error:
            # No later round would go better, so none may count on this device.
            log.error("round %d: %s; taking no part in run %s", task.round, error, task.run)
            self._fitness.decline_run(task, str(error))
            self._is_fit()
        except (SparsyedgeError, OSError) as error:
            log.error(
                "round %d: %s; trying again in %g s if the round is still open", task.round, error, RETRY_FAILED_S
            )
            self._decline_round(task, error)

    def _retry(self, task: RoundTask, error: SparsyedgeError) -> None:
        """Try again soon: most of what goes wrong on the way passes. What does not, the coordinator must know."""
        if str(error) != self._trouble:
            log.warning("round %d: %s; trying again", task.round, error)
        self._trouble = str(error)
        self._failures += 1
        if self._failures >= PATIENT_RETRIES:
            self._failures = 0
            self._decline_round(task, error)
        else:
            self._pause(task)

    def _decline_round(self, task: RoundTask, error: Exception) -> None:
        self._fitness.decline_round(task, str(error), time.monotonic())
        self._is_fit()

    def _pause(self, task: RoundTask) -> None:
        until_s = time.monotonic() + RETRY_S
        while self._is_open(task) and time.monotonic() < until_s:
            self._courier.listen()

    # ---- download ----------------------------------------------------------------------------------------------------

    def _prepare(self, task: RoundTask) -> tuple[Session, Manifest]:
        """A session that holds the task's model, fetched as far as the device does not have it."""
        wanted = partial(self._is_open, task)
        artifacts = self._holder.artifacts(task.manifest.sha256)
        if artifacts is None:
            artifacts = self._inputs.artifacts(task, roles=self._holder.roles, wanted=wanted)
            self._holder.put(artifacts, task.manifest.sha256)
        manifest = artifacts.manifest
        self._inputs.check_bounds(task, manifest)
        if self._fitted_to != task.manifest.sha256:
            self._fitted = fit_to_model(self._samples, self._class_names, manifest.form, owner="this device's data")
            self._fitted_to = task.manifest.sha256
        if task.model_id == manifest.initial_model:
            return self._holder.session(None, round_number=task.round), manifest
        model = self._inputs.model(task, manifest, wanted=wanted)
        if task.round > 1:  # round 1 trains what it is given, the checkpoint's model or another
            sparsity = manifest.method.sparsity_of(self._device, task.round)
            model = start_state(manifest.method, model, prunable=manifest.prunable, sparsity=sparsity)
        return self._holder.session(model, round_number=task.round), manifest

    def _count_regrown(self, trained: State, task: RoundTask, manifest: Manifest) -> int | None:
        """How many pruned weights training brought back; None for the checkpoint's model, which is dense."""
        before = self._inputs.held_model(task, manifest)
        return None if before is None else count_regrown(before, trained, manifest.prunable)

    # ---- train, prune, encode ----------------------------------------------------------------------------------------

    def _make_update(self, task: RoundTask) -> None:
        """The first four phases; leaves the update in the outbox."""
        with self._holder.lock:
            self._work_on(task)

    def _work_on(self, task: RoundTask) -> None:
        log.info("run %s, round %d of %d: taking part", task.run, task.round, task.rounds)
        self._resolve_doubt(task)
        self._courier.bytes_down = self._courier.bytes_up = 0
        recorder = PhaseRecorder(self._meter)
        with recorder.phase("download"):
            session, manifest = self._prepare(task)
        method = manifest.method
        start = session.state() if needs_start(method) else None
        with recorder.phase("train"):
            trained = self._train(task, session, manifest, recorder)
        with recorder.phase("prune"):
            sparsity = method.sparsity_of(self._device, task.round) if method.sparsities else task.sparsity
            full = session.state()
            state = finish_update(method, full, prunable=manifest.prunable, sparsity=sparsity, start=start)
        # Where zeros stay zero there is nothing to count, and the model need not be read again.
        regrown = 0 if session.kind == "sparse" and method.keeps_zeros else self._count_regrown(full, task, manifest)
        del full
        bad = first_nonfinite(state)
        if bad is not None:
            raise TrainingError(f"training left NaN or infinity in {bad}; lower the learning rate of the run")
        with recorder.phase("encode"):
            coded = self._encode(state, task, manifest)
            update = blob_of(coded.frame, chunk_bytes=task.model.chunk_bytes)
        offer = Offer(
            run=task.run,
            round=task.round,
            base=task.model_id,
            update=update,
            samples=len(self._samples),
            report=self._report(task, recorder.snapshot(), trained, regrown=regrown),
        )
        self._outbox.put(Pending(self._key(task), self._sign(offer)), coded.frame, task=task, residual=coded.residual)
        if self._job_path is not None:
            self._job_path.unlink(missing_ok=True)

    def _train(self, task: RoundTask, session: Session, manifest: Manifest, recorder: PhaseRecorder) -> Trained:
        """The local job, from its beginning or from the end of the last epoch that an earlier process finished."""
        job = self._job(task)
        run = partial(
            train,
            session,
            self._fitted,
            job,
            keep_going=lambda: self._keep_going(task),
            before_step=step_rule(manifest.method, session, manifest.prunable, job),
            smallest_plane=min((norm.plane for norm in manifest.batch_norms), default=None),
        )
        # Exponents are those of the round's model: a session that is given another in between would derive others.
        if self._job_path is None or manifest.method.reparametrisation == "auto-beta":
            return run()
        unfinished = UnfinishedJob(self._job_path, manifest.shapes, manifest.prunable)
        key, done = self._key(task), None
        if (found := unfinished.load(key)) is not None:
            progress, state = found
            log.info("round %d: going on after epoch %d of %d", task.round, progress.epochs, task.epochs)
            session.load(state)
            recorder.add(progress.phases)
            self._courier.bytes_down += progress.bytes_down
            done = Trained(epochs=progress.epochs, steps=progress.steps, loss=progress.loss)

        def keep(trained: Trained) -> None:
            progress = JobProgress(
                key=key,
                epochs=trained.epochs,
                steps=trained.steps,
                loss=trained.loss,
                phases=recorder.snapshot(),
                bytes_down=self._courier.bytes_down,
            )
            unfinished.save(progress, session.state())

        return run(done=done, on_epoch=keep)

    def _encode(self, state: State, task: RoundTask, manifest: Manifest) -> Coded:
        return encode_with_feedback(
            state,
            self._residual(task, manifest),
            run=task.run,
            round_number=task.round,
            base_id=task.model_id,
            base=self._inputs.held_model(task, manifest),
            # Such an update says that most entries did not change at all: rounding them would be a change.
            codec=LOSSLESS if manifest.method.uplink == "delta" else task.codec,
            prunable=manifest.prunable,
        )

    def _residual(self, task: RoundTask, manifest: Manifest) -> Tensors:
        """What this device's updates have left unsaid so far."""
        shapes = {name: manifest.shapes[name] for name in manifest.prunable}
        try:
            return unpack_residual(self._outbox.residual(task), shapes)
        except FrameError as error:
            log.warning("round %d: what earlier updates left over is lost: %s", task.round, error)
            return {}

    def _resolve_doubt(self, task: RoundTask) -> None:
        """Offer the last update again where its answer was lost: what it left over counts only if it was averaged."""
        if not self._outbox.is_in_doubt(task):
            return
        pending = self._outbox.pending
        assert pending is not None
        until_s = time.monotonic() + VERDICT_S
        try:
            verdict = self._courier.deliver(
                pending.offer,
                self._outbox.frame(),
                wanted=lambda: self._is_open(task) and time.monotonic() < until_s,
            )
        except Abandoned:
            log.info("round %d: no word about the update of round %d", task.round, pending.offer.round)
            return
        self._note(verdict)

    def _note(self, verdict: Accepted | Refused) -> None:
        if isinstance(verdict, Accepted):
            # The update stays on disk until the next one takes its place: a device that restarts within this round
            # then has its answer ready, and a coordinator that took it says so again.
            self._outbox.accept()
        else:
            log.warning("round %d: the coordinator refused the update: %s", verdict.round, verdict.reason)
            self._outbox.refuse()

    def _keep_going(self, task: RoundTask) -> bool:
        self._courier.drain()
        # A device that gets too hot keeps its place in the round and goes on when it has cooled down.
        while not self._is_fit() and self._is_open(task):
            self._courier.listen()
        return self._is_open(task)

    def _job(self, task: RoundTask) -> LocalJob:
        return LocalJob(
            device_id=self._device,
            round_number=task.round,
            seed=task.seed,
            epochs=task.epochs,
            batch_size=task.batch_size,
            learning_rate=task.learning_rate,
        )

    def _report(
        self, task: RoundTask, phases: dict[str, PhaseCost], trained: Trained, *, regrown: int | None
    ) -> Report:
        return Report(
            run=task.run,
            round=task.round,
            phases=phases,
            energy_source=self._meter.name,
            energy_kind=self._meter.kind,
            energy_hz=self._meter.sample_hz,
            idle_w=self._idle_w,
            bytes_down=self._courier.bytes_down,
            bytes_up=self._courier.bytes_up,
            steps=trained.steps,
            loss=trained.loss,
            peak_rss_mb=peak_rss_mb(),
            pid=os.getpid(),
            regrown=regrown,
        )

    # ---- upload ------------------------------------------------------------------------------------------------------

    def _deliver(self, task: RoundTask) -> None:
        """The last phase: offer what is in the outbox until the coordinator has decided about it."""
        pending = self._outbox.pending
        assert pending is not None
        recorder = PhaseRecorder(self._meter)
        with recorder.phase("upload"):
            verdict = self._courier.deliver(pending.offer, self._outbox.frame(), wanted=lambda: self._is_open(task))
        self._settled = pending.key
        before = pending.offer.report
        report = msgspec.structs.replace(
            before,
            phases={**before.phases, **recorder.snapshot()},
            bytes_up=self._courier.bytes_up,
            peak_rss_mb=peak_rss_mb(),
            pid=os.getpid(),
        )
        log.info("%s", describe(report))
        self._note(verdict)
        if isinstance(verdict, Accepted):
            self._courier.report(report)


def _cost(cost: PhaseCost, kind: str) -> str:
    return f"{cost.seconds:.2f} s" + ("" if cost.joules is None else f" {joules_text(cost.joules, kind, digits=2)}")
