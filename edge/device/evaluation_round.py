"""A device's part in an evaluation round: it evaluates the run's model on its own samples, and trains nothing."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial

from msgspec import UNSET

from sparsyedge.edge.device.blob_source import BlobSource
from sparsyedge.edge.device.courier import Courier
from sparsyedge.edge.device.energy import PhaseRecorder, peak_rss_mb
from sparsyedge.edge.device.equipment import Equipment
from sparsyedge.edge.device.own_model import with_own_model
from sparsyedge.edge.device.round_watch import RoundWatch
from sparsyedge.edge.device.task_inputs import TaskInputs
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.checkpoint import read_initial_state
from sparsyedge.edge.protocol.messages import LocalEvaluation, Report, RoundTask, Score
from sparsyedge.edge.tensors import State
from sparsyedge.edge.training.local_update import start_state

__all__ = ["EvaluationRound"]

log = logging.getLogger(__name__)


class EvaluationRound:
    """Answers tasks that ask for an evaluation alone."""

    def __init__(
        self, courier: Courier, equipment: Equipment, watch: RoundWatch, *, keep_going: Callable[[RoundTask], bool]
    ) -> None:
        """Calls `keep_going` between batches; it may block to pause the evaluation."""
        self._courier = courier
        self._data = equipment.data
        self._power = equipment.power
        self._desk = equipment.desk
        source = BlobSource(courier, equipment.files.downloads, ca=equipment.signing.ca)
        self._inputs = TaskInputs(source, equipment.files.cache, keys=equipment.signing.keys, decoded=equipment.decoded)
        self._watch = watch
        self._keep_going = keep_going

    def answer(self, task: RoundTask) -> None:
        """Evaluate and report; the coordinator has the report when this returns."""
        self._courier.bytes_down = self._courier.bytes_up = 0
        recorder = PhaseRecorder(self._power.meter)
        wanted = partial(self._watch.is_open, task)
        with recorder.phase("download"):
            self._inputs.inference_artifacts(task, wanted=wanted)
            artifacts = self._inputs.artifacts(task, roles=("checkpoint",), wanted=wanted)
            data = self._data.for_round(task, artifacts.manifest.form, device_id=self._courier.device)
            state = None if data.evaluation is None else self._model(task, artifacts, wanted)
        evaluated = LocalEvaluation(samples=0)
        if data.evaluation is not None and state is not None:
            with recorder.phase("evaluate"):
                score = self._desk.score(
                    artifacts,
                    task.manifest.sha256,
                    state,
                    data.evaluation,
                    keep_going=lambda: self._keep_going(task),
                )
            evaluated = LocalEvaluation(samples=len(data.evaluation), held_out=data.held_out, before=score)
        log.info("evaluation %s of run %s: %s", task.evaluation, task.run, _describe(evaluated))
        self._courier.confirm(self._report(task, recorder, evaluated), wanted=wanted)

    def _model(self, task: RoundTask, artifacts: Artifacts, wanted: Callable[[], bool]) -> State:
        """The task's model as this device would begin the next round with it."""
        manifest = artifacts.manifest
        if task.model_id == manifest.initial_model:
            return read_initial_state(artifacts)
        device, following = self._courier.device, task.round + 1
        received = with_own_model(task, manifest.method, device, round_number=following)
        model = self._inputs.model(received, artifacts, wanted=wanted)
        sparsity = manifest.method.sparsity_of(device, following)
        return start_state(
            manifest.method, model, prunable=manifest.prunable, sparsity=sparsity, positions=manifest.positions
        )

    def _report(self, task: RoundTask, recorder: PhaseRecorder, evaluated: LocalEvaluation) -> Report:
        meter = self._power.meter
        return Report(
            run=task.run,
            round=task.round,
            phases=recorder.snapshot(),
            energy_source=meter.name,
            energy_kind=meter.kind,
            energy_hz=meter.sample_hz,
            idle_w=self._power.idle_w,
            bytes_down=self._courier.bytes_down,
            bytes_up=0,
            steps=0,
            loss=0.0,
            peak_rss_mb=peak_rss_mb(),
            pid=os.getpid(),
            evaluated=evaluated,
            evaluation=task.evaluation,
        )


def _describe(evaluated: LocalEvaluation) -> str:
    score = evaluated.before
    if not isinstance(score, Score):
        return "nothing to evaluate on" if not evaluated.samples else "the loss is not finite"
    accuracy = "" if score.accuracy is UNSET else f", accuracy {score.accuracy:.2%}"
    return f"loss {score.loss:.4f}{accuracy} on {evaluated.samples} samples"
