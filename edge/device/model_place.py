"""Where a device's model is for programs on the same machine: model.onnx and model.json, tried before they are used."""

from __future__ import annotations

import logging
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from sparsyedge.edge.config import DeviceConfig
from sparsyedge.edge.device.model_hook import ModelHook
from sparsyedge.edge.device.model_shelf import ModelShelf
from sparsyedge.edge.errors import ArtifactError
from sparsyedge.edge.inference.delivery import write_models
from sparsyedge.edge.inference.description import Origin
from sparsyedge.edge.inference.model_note import NOTE_NAME, ModelKind, ModelNote, note_of, read_note
from sparsyedge.edge.inference.preprocessing import MODEL_NAME
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.protocol.messages import HeldModel
from sparsyedge.edge.storage import write_atomically
from sparsyedge.edge.tensors import State

__all__ = ["Candidate", "ModelPlace", "device_folder", "model_shelf"]

log = logging.getLogger(__name__)

FOLDERS: dict[ModelKind, str] = {"global": "model", "personal": "personal"}


def device_folder(config: DeviceConfig) -> Path:
    """Where a device keeps its files; several devices on one machine can share a `work_dir`."""
    return Path(config.work_dir).expanduser() / config.fleet / config.id


def model_shelf(work_dir: Path, kind: ModelKind) -> ModelShelf:
    """The place of that model in a device's folder."""
    return ModelShelf(work_dir / FOLDERS[kind])


class Candidate(NamedTuple):
    """A model to put in place."""

    state: State
    artifacts: Artifacts
    origin: Origin
    model_id: str

    @property
    def held(self) -> HeldModel:
        """What this device holds once the model is in place, not measured yet."""
        return HeldModel(run=self.origin.run, round=self.origin.round, model_id=self.model_id)


class ModelPlace:
    """One model's place. `put` belongs to one thread; the rest may be read by any."""

    def __init__(
        self, work_dir: Path, kind: ModelKind, *, device: str, threads: int, hook: ModelHook | None = None
    ) -> None:
        """`hook` runs once for every version."""
        self._shelf = model_shelf(work_dir, kind)
        self._kind = kind
        self._device = device
        self._threads = threads
        self._hook = hook
        self._note = self._read()

    @property
    def held(self) -> HeldModel | None:
        """The model in place; None if there is none."""
        note = self._note
        if note is None:
            return None
        return HeldModel(run=note.run, round=note.round, model_id=note.model_id, predict_ms=note.predict_ms)

    def put(self, candidate: Candidate) -> None:
        """Write, try and measure a model, then use it from now on; raises ArtifactError if it does not work."""
        origin, started_s = candidate.origin, time.monotonic()

        def fill(folder: Path) -> None:
            write_models(folder, candidate.state, candidate.artifacts, origin, names=(MODEL_NAME,))
            note = note_of(
                folder / MODEL_NAME,
                kind=self._kind,
                device=self._device,
                model_id=candidate.model_id,
                threads=self._threads,
            )
            write_atomically(folder / NOTE_NAME, msgspec.json.format(msgspec.json.encode(note), indent=2) + b"\n")

        self._shelf.put(f"{origin.run}-{origin.round:04d}-{candidate.model_id[:12]}", fill)
        self._note = note = self._read()
        if note is not None:
            log.info(
                "the %s model of round %d is in %s after %.1f s: %.1f MB, %.1f ms a sample",
                self._kind,
                note.round,
                self._shelf.current,
                time.monotonic() - started_s,
                note.bytes / 1e6,
                note.predict_ms,
            )
        self.announce()

    def announce(self) -> None:
        """Run the hook for the version in place, unless it has been run for it."""
        note, version = self._note, self._shelf.version
        if self._hook is None or note is None or version is None or version == self._shelf.told:
            return
        self._hook.start(
            begin=partial(self._shelf.tell, version),
            variables={
                "SPARSYEDGE_MODEL": str(self._shelf.current / MODEL_NAME),
                "SPARSYEDGE_MODEL_JSON": str(self._shelf.current / NOTE_NAME),
                "SPARSYEDGE_MODEL_SHA256": note.sha256,
                "SPARSYEDGE_MODEL_ID": note.model_id,
                "SPARSYEDGE_RUN": note.run,
                "SPARSYEDGE_ROUND": str(note.round),
                "SPARSYEDGE_DEVICE": note.device,
            },
        )

    def _read(self) -> ModelNote | None:
        if self._shelf.version is None:
            return None
        try:
            return read_note(self._shelf.current / NOTE_NAME)
        except ArtifactError as error:
            log.warning("%s; the model will be put in place again", error)
            return None
