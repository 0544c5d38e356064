"""Trains one local job, from the start or from the last epoch that an earlier process finished."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from sparsyedge.edge.data import Samples
from sparsyedge.edge.device.courier import Courier
from sparsyedge.edge.device.energy import PhaseRecorder
from sparsyedge.edge.device.interrupted_job import JobProgress, UnfinishedJob
from sparsyedge.edge.device.optimizer_memory import OptimizerMemory
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.protocol.messages import RoundTask
from sparsyedge.edge.tensors import State, Tensors
from sparsyedge.edge.training.job_inputs import inputs_of
from sparsyedge.edge.training.local_update import step_rule
from sparsyedge.edge.training.mask_votes import StartVotes, vote_for_regrowth, vote_for_start
from sparsyedge.edge.training.session import Session
from sparsyedge.edge.training.trainer import LocalJob, OnStep, Trained, train

__all__ = ["JobTraining"]

log = logging.getLogger(__name__)


class JobTraining:
    """Trains jobs and, given a path, saves the state after each epoch."""

    def __init__(self, courier: Courier, job_path: Path | None, memory: OptimizerMemory) -> None:
        self._courier = courier
        self._job_path = job_path
        self._memory = memory

    def run(
        self,
        task: RoundTask,
        session: Session,
        samples: Samples,
        manifest: Manifest,
        *,
        key: str,
        recorder: PhaseRecorder,
        keep_going: Callable[[], bool],
        on_step: OnStep | None = None,
    ) -> Trained:
        """Train the session; raises JobCancelled once `keep_going` says no."""
        keeps = manifest.training.state == "keep"
        if keeps and (memory := self._memory.load(task, manifest.optimizer_shapes)) is not None:
            session.load_optimizer_state(memory)
        trained = self._run(
            task, session, samples, manifest, key=key, recorder=recorder, keep_going=keep_going, on_step=on_step
        )
        if keeps:
            self._memory.save(task, session.optimizer_state())
        return trained

    def _run(
        self,
        task: RoundTask,
        session: Session,
        samples: Samples,
        manifest: Manifest,
        *,
        key: str,
        recorder: PhaseRecorder,
        keep_going: Callable[[], bool],
        on_step: OnStep | None = None,
    ) -> Trained:
        """Train, from the last epoch that is on disk if there is one."""
        job = self._job(task, samples, manifest)
        run = partial(
            train,
            session,
            samples,
            job,
            keep_going=keep_going,
            on_step=on_step,
            before_step=step_rule(manifest.method, session, manifest.prunable, job),
            smallest_plane=min((norm.plane for norm in manifest.batch_norms), default=None),
        )
        # auto-beta derives its exponents from the round's model; loading a half-trained state would change them.
        if self._job_path is None or manifest.method.reparametrisation == "auto-beta":
            return run()
        unfinished = UnfinishedJob(self._job_path, manifest.shapes | manifest.optimizer_shapes)
        done = None
        if (found := unfinished.load(key)) is not None:
            progress, state = found
            log.info("round %d: going on after epoch %d of %d", task.round, progress.epochs, task.epochs)
            session.load({name: state[name] for name in manifest.shapes})
            session.load_optimizer_state({name: state[name] for name in manifest.optimizer_shapes})
            recorder.add(progress.phases)
            self._courier.bytes_down += progress.bytes_down
            done = Trained(epochs=progress.epochs, steps=progress.steps, loss=progress.loss, loss_rms=progress.loss_rms)

        def keep(trained: Trained) -> None:
            progress = JobProgress(
                key=key,
                epochs=trained.epochs,
                steps=trained.steps,
                loss=trained.loss,
                phases=recorder.snapshot(),
                bytes_down=self._courier.bytes_down,
                loss_rms=trained.loss_rms,
            )
            unfinished.save(progress, session.state() | session.optimizer_state())

        return run(done=done, on_epoch=keep)

    def vote(
        self, task: RoundTask, session: Session, samples: Samples, manifest: Manifest, *, on_step: OnStep
    ) -> StartVotes:
        """Vote for the first mask instead of training; the session then holds another model."""
        votes = vote_for_start(session, samples, self._job(task, samples, manifest), manifest)
        on_step(1, 1, [votes.trained.loss])
        return votes

    def vote_again(
        self, task: RoundTask, session: Session, samples: Samples, manifest: Manifest, *, base: Tensors, state: State
    ) -> State:
        """Return the update with votes for zeros of the round's model; the session then holds another model."""
        return vote_for_regrowth(session, samples, self._job(task, samples, manifest), manifest, base=base, state=state)

    def forget(self) -> None:
        """Remove the saved state; call it once the update is in the outbox."""
        if self._job_path is not None:
            self._job_path.unlink(missing_ok=True)

    def _job(self, task: RoundTask, samples: Samples, manifest: Manifest) -> LocalJob:
        return LocalJob(
            device_id=self._courier.device,
            round_number=task.round,
            seed=task.seed,
            epochs=task.epochs,
            batch_size=task.batch_size,
            learning_rate=task.learning_rate,
            training=manifest.training,
            inputs=inputs_of(manifest, samples.y, task.round),
        )
