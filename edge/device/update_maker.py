"""Makes a device's update for one task: downloads, trains, prunes, encodes, and puts the update in the outbox."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial

from sparsyedge.edge.data import Samples
from sparsyedge.edge.device.blob_source import BlobSource
from sparsyedge.edge.device.courier import Courier
from sparsyedge.edge.device.energy import PhaseRecorder, peak_rss_mb
from sparsyedge.edge.device.equipment import Equipment
from sparsyedge.edge.device.job_training import JobTraining
from sparsyedge.edge.device.outbox import Pending
from sparsyedge.edge.device.round_watch import RoundWatch
from sparsyedge.edge.device.task_inputs import TaskInputs
from sparsyedge.edge.errors import DamagedFileError, TrainingError
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.phase_costs import PhaseCost
from sparsyedge.edge.protocol.chunks import blob_of
from sparsyedge.edge.protocol.messages import Offer, Report, RoundTask
from sparsyedge.edge.tensors import State, Tensors, count_regrown, first_nonfinite
from sparsyedge.edge.training.local_update import finish_update, needs_start, start_state
from sparsyedge.edge.training.session import Session
from sparsyedge.edge.training.trainer import Trained
from sparsyedge.edge.wire.codecs import LOSSLESS
from sparsyedge.edge.wire.error_feedback import Coded, encode_with_feedback, unpack_residual

__all__ = ["UpdateMaker"]

log = logging.getLogger(__name__)


class UpdateMaker:
    """Runs the first four phases of a round and records their costs."""

    def __init__(
        self, courier: Courier, equipment: Equipment, watch: RoundWatch, *, keep_going: Callable[[RoundTask], bool]
    ) -> None:
        """Calls `keep_going` between training steps; it may block to pause training."""
        self._courier = courier
        self._data = equipment.data
        self._holder = equipment.holder
        self._outbox = equipment.files.outbox
        self._power = equipment.power
        self._sign = equipment.signing.sign
        source = BlobSource(courier, equipment.files.downloads, ca=equipment.signing.ca)
        self._inputs = TaskInputs(source, equipment.files.cache, signing_key=equipment.signing.artifact_key)
        self._training = JobTraining(courier, equipment.files.job_path, equipment.files.optimizer)
        self._watch = watch
        self._keep_going = keep_going

    def make(self, task: RoundTask) -> None:
        """Make the update and put it in the outbox, with the offer that announces it."""
        self._courier.bytes_down = self._courier.bytes_up = 0
        recorder = PhaseRecorder(self._power.meter)
        with recorder.phase("download"):
            session, manifest, samples = self._prepare(task)
        start = session.state() if needs_start(manifest.method) else None
        with recorder.phase("train"):
            trained = self._training.run(
                task,
                session,
                samples,
                manifest,
                key=self._watch.key(task),
                recorder=recorder,
                keep_going=lambda: self._keep_going(task),
            )
        state, regrown = self._prune(task, session, manifest, start, recorder)
        with recorder.phase("encode"):
            coded = self._encode(state, task, manifest)
            update = blob_of(coded.frame, chunk_bytes=task.model.chunk_bytes)
        offer = Offer(
            run=task.run,
            round=task.round,
            base=task.model_id,
            update=update,
            samples=len(self._data),
            report=self._report(task, recorder.snapshot(), trained, regrown=regrown),
        )
        pending = Pending(self._watch.key(task), self._sign(offer))
        self._outbox.put(pending, coded.frame, task=task, residual=coded.residual)
        self._training.forget()

    def _prepare(self, task: RoundTask) -> tuple[Session, Manifest, Samples]:
        """Fetch what the device lacks, and load the task's model into a session."""
        wanted = partial(self._watch.is_open, task)
        artifacts = self._holder.artifacts(task.manifest.sha256)
        if artifacts is None:
            artifacts = self._inputs.artifacts(task, roles=self._holder.roles, wanted=wanted)
            self._holder.put(artifacts, task.manifest.sha256)
        manifest = artifacts.manifest
        self._inputs.check_bounds(task, manifest)
        samples = self._data.fit(manifest.form, manifest=task.manifest.sha256)
        if task.model_id == manifest.initial_model:
            return self._holder.session(None, round_number=task.round), manifest, samples
        model = self._inputs.model(task, artifacts, wanted=wanted)
        if task.round > 1:  # round 1 trains what it is given, the checkpoint's model or another
            sparsity = manifest.method.sparsity_of(self._courier.device, task.round)
            model = start_state(manifest.method, model, prunable=manifest.prunable, sparsity=sparsity)
        return self._holder.session(model, round_number=task.round), manifest, samples

    def _prune(
        self, task: RoundTask, session: Session, manifest: Manifest, start: State | None, recorder: PhaseRecorder
    ) -> tuple[State, int | None]:
        """Return the pruned state, and how many previously pruned weights training brought back.

        Raises TrainingError if the state is not finite.
        """
        method = manifest.method
        with recorder.phase("prune"):
            sparsity = method.sparsity_of(self._courier.device, task.round) if method.sparsities else task.sparsity
            full = session.state()
            state = finish_update(method, full, prunable=manifest.prunable, sparsity=sparsity, start=start)
        # If zeros stay zero, none comes back, and we need not read the model again.
        regrown = 0 if session.kind == "sparse" and method.keeps_zeros else self._count_regrown(full, task, manifest)
        del full
        bad = first_nonfinite(state)
        if bad is not None:
            raise TrainingError(f"training left NaN or infinity in {bad}; lower the learning rate of the run")
        return state, regrown

    def _count_regrown(self, trained: State, task: RoundTask, manifest: Manifest) -> int | None:
        """Count the pruned weights that training brought back; None for the checkpoint's model, which is dense."""
        before = self._inputs.held_model(task, manifest)
        return None if before is None else count_regrown(before, trained, manifest.prunable)

    def _encode(self, state: State, task: RoundTask, manifest: Manifest) -> Coded:
        artifacts = self._holder.artifacts(task.manifest.sha256)
        assert artifacts is not None, "training needed them"
        return encode_with_feedback(
            state,
            self._residual(task, manifest),
            run=task.run,
            round_number=task.round,
            base_id=task.model_id,
            base=self._inputs.base_of_update(task, artifacts),
            # If the method prunes changes, most entries equal the base; rounding would change them.
            codec=LOSSLESS if manifest.method.uplink == "delta" else task.codec,
            prunable=manifest.prunable,
        )

    def _residual(self, task: RoundTask, manifest: Manifest) -> Tensors:
        """Return the rounding error left over from this device's earlier updates."""
        shapes = {name: manifest.shapes[name] for name in manifest.prunable}
        try:
            return unpack_residual(self._outbox.residual(task), shapes)
        except DamagedFileError as error:
            log.warning("round %d: what earlier updates left over is lost: %s", task.round, error)
            return {}

    def _report(
        self, task: RoundTask, phases: dict[str, PhaseCost], trained: Trained, *, regrown: int | None
    ) -> Report:
        meter = self._power.meter
        return Report(
            run=task.run,
            round=task.round,
            phases=phases,
            energy_source=meter.name,
            energy_kind=meter.kind,
            energy_hz=meter.sample_hz,
            idle_w=self._power.idle_w,
            bytes_down=self._courier.bytes_down,
            bytes_up=self._courier.bytes_up,
            steps=trained.steps,
            loss=trained.loss,
            peak_rss_mb=peak_rss_mb(),
            pid=os.getpid(),
            regrown=regrown,
        )
