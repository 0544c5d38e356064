"""The retained messages of a run: the current round's task and the blobs it names."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Literal

import msgspec
from msgspec import UNSET

from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.fleet.blob_store import BlobStore
from sparsyedge.coordinator.fleet.broker_access import manifest_signature, sign_manifest_again
from sparsyedge.coordinator.fleet.publisher import Publisher
from sparsyedge.coordinator.model.global_model import GlobalModel
from sparsyedge.coordinator.rounds.events import OpenRound
from sparsyedge.coordinator.rounds.learning_rates import learning_rate
from sparsyedge.edge.compatibility import (
    CLASS_SHARES,
    DEVICE_EVALUATION,
    FIRST,
    HTTP_BLOBS,
    OURS,
    Demand,
    own_software,
    which_upgrade,
)
from sparsyedge.edge.model.artifacts import MANIFEST_NAME, Artifacts
from sparsyedge.edge.protocol.chunks import blob_of, recut
from sparsyedge.edge.protocol.messages import CHUNK_BYTES, Blob, Delta, DeviceStatus, Level, Quality, RoundTask
from sparsyedge.edge.text import one_line

__all__ = ["Announcements"]


class Announcements:
    """Keeps a run's retained messages in step with its rounds."""

    def __init__(
        self,
        config: RunConfig,
        artifacts: Artifacts,
        publisher: Publisher,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        seal: Callable[[RoundTask], RoundTask] = lambda task: task,
        store: BlobStore | None = None,
    ) -> None:
        """`seal` signs tasks in a secured fleet; with a store, devices fetch blobs over HTTP."""
        self._config = config
        self._manifest = artifacts.manifest
        self._publisher = publisher
        self._chunk_bytes = chunk_bytes
        self._seal = seal
        self._store = store
        self._task: RoundTask | None = None
        # The oldest version that can express the run: most devices can read it, and no device gets to choose it.
        self._protocol = OURS.protocol.oldest
        needs = (artifacts.manifest.needs or ()) + (() if self._has_chunks else (HTTP_BLOBS,))
        needs += (DEVICE_EVALUATION,) if config.holdout else ()
        needs += (CLASS_SHARES,) if config.selection == "balanced" else ()
        self._demand = Demand(protocol=self._protocol, needs=needs, software=own_software())
        for file in artifacts.manifest.files.values():
            self._offer(
                self._cut(Blob(sha256=file.sha256, bytes=file.bytes)), (artifacts.directory / file.name).read_bytes
            )
        content = (artifacts.directory / MANIFEST_NAME).read_bytes()
        self._manifest_content = content
        self._manifest_blob = blob_of(content, chunk_bytes=chunk_bytes)
        self._signature = manifest_signature(config)
        self._offer(self._manifest_blob, lambda: content)

    @property
    def round(self) -> int:
        """The last announced round; 0 before the first."""
        return self._task.round if self._task else 0

    @property
    def cohort(self) -> tuple[str, ...]:
        """The last announced cohort."""
        return self._task.cohort if self._task else ()

    def sign_again(self) -> None:
        """Announce the same under the fleet's new signing key, which has just replaced the one before."""
        self._signature = sign_manifest_again(self._config, self._manifest_content)
        if self._task is not None:
            self._announce(msgspec.structs.replace(self._task, signature=self._signature))

    def learning_rate(self, round_number: int) -> float:
        """The learning rate for a round."""
        rate = self._config.learning_rate
        return learning_rate(round_number, self._config.rounds, start=rate.start, end=rate.end)

    def open_round(
        self,
        command: OpenRound,
        model: GlobalModel,
        *,
        left_s: float,
        learning_rate: float | None = None,
        quality: Quality | None = None,
    ) -> None:
        """Announce a round that ends in `left_s`; its model replaces the previous round's.

        A round that an earlier process opened keeps its learning rate. `quality` is the model's.
        """
        rate = self.learning_rate(command.round) if learning_rate is None else learning_rate
        asks = bool(self._config.eval_devices_every) and (
            command.round == self._config.rounds or command.round % self._config.eval_devices_every == 0
        )
        task = self._task_of(command, model, left_s=left_s, learning_rate=rate, quality=quality)
        self._announce(msgspec.structs.replace(task, evaluate=True if asks else UNSET))
        self._keep_only(self._blobs_with_artifacts(task))

    def open_evaluation(self, number: int, command: OpenRound, model: GlobalModel, *, left_s: float) -> None:
        """Announce an evaluation round of the model after the last closed round, which `command` names."""
        needs = tuple(dict.fromkeys((*self._demand.needs, DEVICE_EVALUATION)))
        rate = self.learning_rate(command.round)
        task = self._task_of(command, model, left_s=left_s, learning_rate=rate)
        self._announce(msgspec.structs.replace(task, needs=needs, evaluation=number))
        self._keep_only(self._blobs_with_artifacts(task))

    def _task_of(
        self,
        command: OpenRound,
        model: GlobalModel,
        *,
        left_s: float,
        learning_rate: float,
        quality: Quality | None = None,
    ) -> RoundTask:
        """The task of an open round; offers the blobs that it needs."""
        deltas = self._offer_model(model)
        return RoundTask(
            protocol=self._protocol,
            needs=self._demand.needs or UNSET,
            speaks=OURS,
            software=self._demand.software,
            run=self._config.name,
            round=command.round,
            rounds=self._config.rounds,
            state="open",
            cohort=command.cohort,
            manifest=self._manifest_blob,
            signature=self._signature,
            model_id=model.id,
            model=self._cut(model.blob),
            codec=self._config.codec,
            deltas=deltas,
            levels=tuple(Level(sparsity=g.sparsity, model_id=g.id, model=self._cut(g.blob)) for g in model.groups)
            or UNSET,
            blobs=self._store.url if self._store and self._store.flush() else UNSET,
            learning_rate=learning_rate,
            epochs=self._config.epochs,
            batch_size=self._config.batch_size,
            sparsity=self._manifest.method.sparsity,
            seed=self._config.seed,
            holdout=self._config.holdout or UNSET,
            deadline_unix_s=time.time() + left_s,
            model_round=model.rounds,
            quality=quality or UNSET,
        )

    def extend_round(self, cohort: tuple[str, ...], *, left_s: float) -> None:
        """Announce the open round again, with another deadline and perhaps other members."""
        if self._task is not None:
            task = msgspec.structs.replace(self._task, cohort=cohort, deadline_unix_s=time.time() + left_s)
            self._announce(task)

    def end(self, state: Literal["closed", "finished"]) -> None:
        """Announce that the round or the whole run takes no more updates."""
        if self._task is not None:
            # Without what an evaluation round needs of its readers: every device must hear this.
            task = msgspec.structs.replace(self._task, state=state, evaluation=UNSET, needs=self._demand.needs or UNSET)
            if state == "finished":
                # Nothing is left on the broker of a run that ends this way.
                task = msgspec.structs.replace(task, model_round=UNSET, quality=UNSET)
            self._announce(task)

    def finish(self, model: GlobalModel, quality: Quality | None) -> None:
        """Announce that the run is over, and the model that it ended with: devices fetch that for their predictions."""
        if self._task is None:
            return
        deltas = self._offer_model(model)
        if self._store is not None:
            self._store.flush()
        task = msgspec.structs.replace(
            self._task,
            state="finished",
            evaluation=UNSET,
            needs=self._demand.needs or UNSET,
            model_id=model.id,
            model=self._cut(model.blob),
            deltas=deltas,
            # What is delivered is the whole model.
            levels=UNSET,
            model_round=model.rounds,
            quality=quality or UNSET,
        )
        self._announce(task)

    def judge(self, device: str, status: DeviceStatus) -> DeviceStatus:
        """Return the status, marked `unfit` if the device's software cannot read our announcements.

        What it says of its classes is left out unless the run asked and the model has so many.
        """
        if status.state == "offline":
            return status
        if status.classes and not self._asked_for(status.classes):
            status = msgspec.structs.replace(status, classes=UNSET)
        speaks = status.speaks or FIRST
        reason = which_upgrade(device, status.software, speaks, self._demand, manifest=self._manifest.version)
        return msgspec.structs.replace(status, unfit=one_line(reason), unfit_round=0) if reason else status

    def _asked_for(self, classes: tuple[int, ...]) -> bool:
        return CLASS_SHARES in self._demand.needs and len(classes) == self._manifest.classes

    def clear(self) -> None:
        """Withdraw all blobs; the last task stays for devices that connect later."""
        self._keep_only(set())

    def keep_result(self) -> None:
        """Withdraw all blobs but those that a device needs to predict with the last announced model.

        They and the task stay for devices that connect later, until another run takes over the fleet.
        """
        if self._task is None or not self._task.model_round:
            self.clear()
        else:
            template = self._manifest.files[self._manifest.template_role]
            self._keep_only(_blobs_of(self._task) | {template.sha256})

    def _blobs_with_artifacts(self, task: RoundTask) -> set[str]:
        return _blobs_of(task) | {file.sha256 for file in self._manifest.files.values()}

    @property
    def _has_chunks(self) -> bool:
        """Whether the broker holds the blobs."""
        return self._store is None or self._store.has_fallback

    def _offer_model(self, model: GlobalModel) -> tuple[Delta, ...]:
        """Offer a model, whole and as differences; returns those."""
        if not model.is_initial:
            self._offer(self._cut(model.blob), model.frame_reader())
        for group in model.groups:
            self._offer(self._cut(group.blob), partial(bytes, group.frame))
        deltas = tuple(msgspec.structs.replace(delta, model=self._cut(delta.model)) for delta in model.deltas)
        for delta in deltas:
            # Keep the frame itself: the model may have moved on by the time a broker comes back.
            self._offer(delta.model, partial(bytes, model.delta_frame(delta)))
        return deltas

    def _offer(self, blob: Blob, read: Callable[[], bytes]) -> None:
        if self._has_chunks:
            self._publisher.put(blob, read)
        if self._store is not None:
            self._store.offer(blob, read)

    def _keep_only(self, blobs: set[str]) -> None:
        self._publisher.keep_only(blobs)
        if self._store is not None:
            self._store.keep_only(blobs)

    def _cut(self, blob: Blob) -> Blob:
        """Cut the blob into chunks the broker accepts."""
        return recut(blob, self._chunk_bytes)

    def _announce(self, task: RoundTask) -> None:
        self._task = task
        self._publisher.announce(self._seal(task))


def _blobs_of(task: RoundTask) -> set[str]:
    """The hashes of the blobs that a task names itself; its manifest names more."""
    levels = () if task.levels is UNSET else task.levels
    models = (task.model, *(delta.model for delta in task.deltas), *(level.model for level in levels))
    return {task.manifest.sha256, *(model.sha256 for model in models)}
