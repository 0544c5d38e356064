"""Makes a device's update for one task: downloads, trains, prunes, encodes, and puts the update in the outbox."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial

import msgspec
from msgspec import UNSET, UnsetType

from sparsyedge.edge.data import Samples
from sparsyedge.edge.device.blob_source import BlobSource
from sparsyedge.edge.device.class_shares import ClassTeller
from sparsyedge.edge.device.courier import Courier
from sparsyedge.edge.device.energy import PhaseRecorder, peak_rss_mb
from sparsyedge.edge.device.equipment import Equipment
from sparsyedge.edge.device.job_notices import JobNotices
from sparsyedge.edge.device.job_training import JobTraining
from sparsyedge.edge.device.local_data import RoundData
from sparsyedge.edge.device.outbox import Pending
from sparsyedge.edge.device.own_model import with_own_model
from sparsyedge.edge.device.round_watch import RoundWatch
from sparsyedge.edge.device.task_inputs import TaskInputs
from sparsyedge.edge.errors import DamagedFileError, TrainingError
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.phase_costs import PhaseCost
from sparsyedge.edge.protocol.chunks import blob_of
from sparsyedge.edge.protocol.messages import LocalEvaluation, Offer, Report, RoundTask, Score
from sparsyedge.edge.tensors import State, Tensors, count_regrown, first_nonfinite
from sparsyedge.edge.training.local_update import finish_update, needs_start, start_state
from sparsyedge.edge.training.session import Session
from sparsyedge.edge.training.trainer import Trained
from sparsyedge.edge.wire.codecs import LOSSLESS, Codec
from sparsyedge.edge.wire.error_feedback import Coded, encode_with_feedback, unpack_residual

__all__ = ["UpdateMaker"]

log = logging.getLogger(__name__)


class UpdateMaker:
    """Runs the first four phases of a round and records their costs."""

    def __init__(
        self,
        courier: Courier,
        equipment: Equipment,
        watch: RoundWatch,
        *,
        keep_going: Callable[[RoundTask], bool],
        notices: JobNotices,
    ) -> None:
        """Calls `keep_going` between training steps; it may block to pause training."""
        self._courier = courier
        self._data = equipment.data
        self._holder = equipment.holder
        self._outbox = equipment.files.outbox
        self._power = equipment.power
        self._desk = equipment.desk
        self._sign = equipment.signing.sign
        source = BlobSource(courier, equipment.files.downloads, ca=equipment.signing.ca)
        self._inputs = TaskInputs(source, equipment.files.cache, keys=equipment.signing.keys, decoded=equipment.decoded)
        self._classes = ClassTeller(courier, equipment.data, self._inputs)
        self._models = equipment.models
        self._training = JobTraining(courier, equipment.files.job_path, equipment.files.optimizer)
        self._watch = watch
        self._keep_going = keep_going
        self._notices = notices

    def make(self, task: RoundTask) -> None:
        """Make the update and put it in the outbox, with the offer that announces it."""
        self._courier.bytes_down = self._courier.bytes_up = 0
        recorder = PhaseRecorder(self._power.meter, on_phase=self._notices.note_phase)
        with recorder.phase("download"):
            session, manifest, data, received = self._prepare(task)
        evaluated = self._evaluation_before(task, session, data, recorder)
        if manifest.method.votes_in(task.round):
            with recorder.phase("train"):
                state, trained = self._training.vote(
                    task, session, data.train, manifest, on_step=self._notices.note_step
                )
            regrown = None
        else:
            state, trained, regrown = self._train(task, received, session, data, manifest, recorder)
        evaluated = self._evaluation_after(task, state, data, evaluated, recorder)
        sent = self._with_votes(state, task, session, data, manifest, recorder)
        with recorder.phase("encode"):
            coded = self._encode(sent, task, manifest, received)
            update = blob_of(coded.frame, chunk_bytes=task.model.chunk_bytes)
        offer = Offer(
            run=task.run,
            round=task.round,
            base=task.model_id,
            update=update,
            samples=len(data.train),
            report=self._report(task, recorder.snapshot(), trained, regrown=regrown, evaluated=evaluated),
        )
        pending = Pending(self._watch.key(task), self._sign(offer))
        self._outbox.put(pending, coded.frame, task=task, residual=coded.residual)
        self._training.forget()
        if self._models and self._models.is_personalised:
            self._models.keep_own(task, self._inputs.inference_artifacts(task, wanted=self._wanted(task)), state)

    def _train(
        self,
        task: RoundTask,
        received: RoundTask,
        session: Session,
        data: RoundData,
        manifest: Manifest,
        recorder: PhaseRecorder,
    ) -> tuple[State, Trained, int | None]:
        """Return the trained and pruned state, what training came to, and the weights that it brought back."""
        start = session.state() if needs_start(manifest.method) else None
        with recorder.phase("train"):
            trained = self._training.run(
                task,
                session,
                data.train,
                manifest,
                key=self._watch.key(task),
                recorder=recorder,
                keep_going=lambda: self._keep_going(task),
                on_step=self._notices.note_step,
            )
        state, regrown = self._prune(received, session, manifest, start, recorder)
        return state, trained, regrown

    def _with_votes(
        self,
        state: State,
        task: RoundTask,
        session: Session,
        data: RoundData,
        manifest: Manifest,
        recorder: PhaseRecorder,
    ) -> State:
        """Return what to send: the update, with votes for zeros in a round in which the mask may move."""
        base = self._inputs.held_model(task, manifest)
        if not manifest.method.regrown_share(task.round) or base is None:
            return state
        with recorder.phase("train"):
            return self._training.vote_again(task, session, data.train, manifest, base=base, state=state)

    def follow_model(self, task: RoundTask, *, keep_going: Callable[[], bool]) -> None:
        """Have the task's model kept for predictions, if this device is to do that."""
        if self._models:
            self._models.follow(task, self._inputs, keep_going=keep_going)

    def tell_classes(self, task: RoundTask, *, keep_going: Callable[[], bool]) -> None:
        """Tell a run that asks which classes this device has, though it has no part in the round."""
        self._classes.follow(task, keep_going=keep_going)

    def _wanted(self, task: RoundTask) -> Callable[[], bool]:
        return partial(self._watch.is_open, task)

    def _prepare(self, task: RoundTask) -> tuple[Session, Manifest, RoundData, RoundTask]:
        """Fetch what the device lacks, and load the task's model into a session.

        Also returns the task with the model that was downloaded, which may be smaller than the round's.
        """
        wanted = self._wanted(task)
        artifacts = self._holder.artifacts(task.manifest.sha256)
        if artifacts is None:
            artifacts = self._inputs.artifacts(task, roles=self._holder.roles, wanted=wanted)
            self._holder.put(artifacts, task.manifest.sha256)
        manifest = artifacts.manifest
        self._inputs.check_bounds(task, manifest)
        data = self._data.for_round(task, manifest.form, device_id=self._courier.device)
        self._classes.tell(task, manifest)
        if task.evaluate and data.evaluation is not None and not self._desk.is_ready_for(task.manifest.sha256):
            self._inputs.inference_artifacts(task, wanted=wanted)
        if task.model_id == manifest.initial_model:
            return self._holder.session(None, round_number=task.round), manifest, data, task
        received = with_own_model(task, manifest.method, self._courier.device, round_number=task.round)
        model = self._inputs.model(received, artifacts, wanted=wanted)
        if task.round > 1:  # round 1 trains what it is given, the checkpoint's model or another
            sparsity = manifest.method.sparsity_of(self._courier.device, task.round)
            model = start_state(
                manifest.method,
                model,
                prunable=manifest.prunable,
                sparsity=sparsity,
                positions=manifest.positions,
            )
        return self._holder.session(model, round_number=task.round), manifest, data, received

    def _evaluation_before(
        self, task: RoundTask, session: Session, data: RoundData, recorder: PhaseRecorder
    ) -> LocalEvaluation | UnsetType:
        """Evaluate the model that training starts from, if the task asks and there is something to evaluate on."""
        if not task.evaluate or data.evaluation is None:
            return UNSET
        score = self._score(task, session.state(), data.evaluation, recorder)
        return LocalEvaluation(samples=len(data.evaluation), held_out=data.held_out, before=score)

    def _evaluation_after(
        self,
        task: RoundTask,
        state: State,
        data: RoundData,
        before: LocalEvaluation | UnsetType,
        recorder: PhaseRecorder,
    ) -> LocalEvaluation | UnsetType:
        """Add what the device's own model comes to, as it will be sent."""
        if before is UNSET or data.evaluation is None:
            return UNSET
        return msgspec.structs.replace(before, after=self._score(task, state, data.evaluation, recorder))

    def _score(self, task: RoundTask, state: State, samples: Samples, recorder: PhaseRecorder) -> Score | UnsetType:
        sha256 = task.manifest.sha256
        artifacts = self._holder.artifacts(sha256)
        assert artifacts is not None, "training needs them"
        with recorder.phase("evaluate"):
            return self._desk.score(artifacts, sha256, state, samples, keep_going=lambda: self._keep_going(task))

    def _prune(
        self, task: RoundTask, session: Session, manifest: Manifest, start: State | None, recorder: PhaseRecorder
    ) -> tuple[State, int | None]:
        """Return the pruned state, and how many previously pruned weights training brought back.

        Raises TrainingError if the state is not finite.
        """
        method = manifest.method
        with recorder.phase("prune"):
            sparsity = method.sparsity_of(self._courier.device, task.round) if method.sparsities else task.sparsity
            # Pruning and encoding need their own copies of the model, and no step comes before the next `load`.
            self._holder.rest()
            full = session.state()
            state = finish_update(
                method,
                full,
                prunable=manifest.prunable,
                sparsity=sparsity,
                start=start,
                positions=manifest.positions,
            )
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

    def _encode(self, state: State, task: RoundTask, manifest: Manifest, received: RoundTask) -> Coded:
        artifacts = self._holder.artifacts(task.manifest.sha256)
        assert artifacts is not None, "training needed them"
        return encode_with_feedback(
            state,
            self._residual(task, manifest),
            run=task.run,
            round_number=task.round,
            base_id=task.model_id,
            base=self._inputs.base_of_update(task, artifacts, received=received),
            codec=self._codec(task, manifest),
            prunable=manifest.prunable,
        )

    def _codec(self, task: RoundTask, manifest: Manifest) -> Codec:
        """Lossless where most kept entries equal the base, which then cost nothing: rounding would change them."""
        equals_base = manifest.method.uplink == "delta" or manifest.method.votes_in(task.round)
        return LOSSLESS if equals_base else task.codec

    def _residual(self, task: RoundTask, manifest: Manifest) -> Tensors:
        """Return the rounding error left over from this device's earlier updates."""
        shapes = {name: manifest.shapes[name] for name in manifest.prunable}
        try:
            return unpack_residual(self._outbox.residual(task), shapes)
        except DamagedFileError as error:
            log.warning("round %d: what earlier updates left over is lost: %s", task.round, error)
            return {}

    def _report(
        self,
        task: RoundTask,
        phases: dict[str, PhaseCost],
        trained: Trained,
        *,
        regrown: int | None,
        evaluated: LocalEvaluation | UnsetType,
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
            evaluated=evaluated,
            data=self._data.note,
            loss_rms=UNSET if trained.loss_rms is None else trained.loss_rms,
        )
