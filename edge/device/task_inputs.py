"""Fetches the artifacts and models that a task needs and the disk lacks."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection
from pathlib import Path

from sparsyedge.edge.device.blob_source import BlobSource
from sparsyedge.edge.device.cache import Cache
from sparsyedge.edge.errors import FrameError, SecurityError
from sparsyedge.edge.model.artifacts import MANIFEST_NAME, Artifacts, FileRole, Manifest, decode_manifest
from sparsyedge.edge.model.checkpoint import read_initial_state
from sparsyedge.edge.native import library_path
from sparsyedge.edge.protocol.messages import Blob, Delta, RoundTask
from sparsyedge.edge.security.pinned_keys import PinnedKeys
from sparsyedge.edge.security.signature import check_library, check_signature
from sparsyedge.edge.tensors import State, model_id
from sparsyedge.edge.wire.envelope import max_frame_bytes
from sparsyedge.edge.wire.frame import decode_frame, frame_of

__all__ = ["DecodedModel", "TaskInputs"]

MAX_MANIFEST_BYTES = 16 << 20
"""A fixed limit, since only the manifest itself says how large things are; a hundred times the usual size."""

Wanted = Callable[[], bool]
"""Polled during a fetch; once it returns False, the fetch raises Abandoned."""


class DecodedModel:
    """The last model that was decoded, in memory, for simulated devices that share it and do not change it."""

    def __init__(self) -> None:
        self._id = ""
        self._state: State = {}

    def find(self, identity: str) -> State | None:
        """The state of the model with this id; None if another one was decoded last."""
        return self._state if identity == self._id else None

    def put(self, identity: str, state: State) -> None:
        """Hold this model from now on."""
        self._id, self._state = identity, state


class TaskInputs:
    """Fetches what the cache lacks and stores it there; rejects anything whose hash differs from the announced one."""

    def __init__(
        self, source: BlobSource, cache: Cache, *, keys: PinnedKeys | None, decoded: DecodedModel | None = None
    ) -> None:
        """With signing keys, refuses artifacts not signed with one; with `decoded`, decodes each model once."""
        self._source = source
        self._cache = cache
        self._keys = keys
        self._decoded = decoded

    def artifacts(self, task: RoundTask, *, roles: Collection[str], wanted: Wanted) -> Artifacts:
        """The task's artifacts, including the files for these roles."""
        sha256 = task.manifest.sha256
        folder = self._cache.folder(sha256)
        if self._cache.has_file(sha256, MANIFEST_NAME, sha256=sha256):
            content = (folder / MANIFEST_NAME).read_bytes()
        else:
            content = self._fetch(task, task.manifest, "manifest", at_most=MAX_MANIFEST_BYTES, wanted=wanted)
        if self._keys is not None:
            self._keys.check(lambda key: check_signature(content, task.signature, signing_key=key))
        manifest = decode_manifest(content, source=f"the manifest of run {task.run}")
        if self._keys is not None:
            check_library(manifest, library_path())
        missing = [
            file
            for role, file in manifest.files.items()
            if role in roles and not self._cache.has_file(sha256, file.name, sha256=file.sha256)
        ]
        _require_room(folder, sum(file.bytes for file in missing))
        for file in missing:
            # Files use the same chunk size as the manifest.
            blob = Blob(sha256=file.sha256, bytes=file.bytes, chunk_bytes=task.manifest.chunk_bytes)
            self._cache.keep_file(sha256, file.name, self._source.fetch(task, blob, wanted=wanted))
        self._cache.keep_file(sha256, MANIFEST_NAME, content)
        return Artifacts(folder, manifest)

    def inference_artifacts(self, task: RoundTask, *, wanted: Wanted) -> Artifacts:
        """The task's artifacts, including what a model for predictions is made from."""
        role: FileRole = "skeleton"
        artifacts = self.artifacts(task, roles=(role,), wanted=wanted)
        if (role := artifacts.manifest.template_role) != "skeleton":
            artifacts = self.artifacts(task, roles=(role,), wanted=wanted)
        return artifacts

    def check_bounds(self, task: RoundTask, manifest: Manifest) -> None:
        """Raise SecurityError if the task exceeds the signed manifest's limits; holds even if the run's key leaks."""
        if self._keys is None:
            return
        if task.epochs > manifest.max_epochs:
            raise SecurityError(
                f"the task asks for {task.epochs} epochs, the signed manifest allows {manifest.max_epochs}; the "
                f"operator may allow more with `sparsyedge coordinator sign --max-epochs`"
            )
        if task.sparsity != manifest.method.sparsity:
            raise SecurityError(
                f"the task asks for sparsity {task.sparsity:g}, the signed manifest for {manifest.method.sparsity:g}"
            )

    def model(self, task: RoundTask, artifacts: Artifacts, *, wanted: Wanted) -> State:
        """The task's model; raises FrameError if its id is not the one the task names."""
        manifest = artifacts.manifest
        frame = self._cache.model(task.model_id)
        delta = self._nearest(task, artifacts) if frame is None else None
        try:
            blob = task.model if delta is None else delta.model
            at_most = max_frame_bytes(manifest.shapes)
            fetched = frame or self._fetch(task, blob, "model", at_most=at_most, wanted=wanted)
            state = self._decode(fetched, delta, task, artifacts)
        except FrameError:
            # Then the next attempt fetches the whole model.
            for model in (task.model_id, *([delta.base] if delta else [])):
                self._cache.drop_model(model)
            raise
        whole = fetched if delta is None else _whole_frame(state, task, manifest)
        self._cache.keep_model(task.model_id, whole)
        return state

    def _decode(self, fetched: bytes, delta: Delta | None, task: RoundTask, artifacts: Artifacts) -> State:
        """The model in a frame, which is a difference if there is a delta."""
        if (known := self._known(task)) is not None:
            return known
        base = None if delta is None else self._base(delta, artifacts)
        state = decode_frame(fetched, artifacts.manifest.shapes, base).state
        found = model_id(state)
        if found != task.model_id:
            raise FrameError(f"the frame announced as model {task.model_id[:12]} holds model {found[:12]}")
        if self._decoded is not None:
            self._decoded.put(found, state)
        return state

    def held_model(self, task: RoundTask, manifest: Manifest) -> State | None:
        """Read the task's model from disk again, as the base that both sides hold; None for the checkpoint's model.

        A real device does not keep it in memory, because training needs the memory.
        """
        frame = self._cache.model(task.model_id)
        if frame is None:
            return None
        known = self._known(task)
        return decode_frame(frame, manifest.shapes).state if known is None else known

    def _known(self, task: RoundTask) -> State | None:
        return None if self._decoded is None else self._decoded.find(task.model_id)

    def _fetch(self, task: RoundTask, blob: Blob, what: str, *, at_most: int, wanted: Wanted) -> bytes:
        if blob.bytes > at_most:
            raise FrameError(f"the task announces a {what} of {blob.bytes} bytes; at most {at_most} are allowed")
        return self._source.fetch(task, blob, wanted=wanted)

    def base_of_update(self, task: RoundTask, artifacts: Artifacts, *, received: RoundTask) -> State | None:
        """What the update is sent as a difference to: the task's model, or of the checkpoint's what no step changes.

        If nobody trains in the round, that is all of the checkpoint's. A device that received a smaller model does not
        hold the round's. None if it is nothing.
        """
        is_whole = received.model_id == task.model_id
        held = self.held_model(task, artifacts.manifest) if is_whole else None
        frozen, is_vote = artifacts.manifest.frozen, artifacts.manifest.method.votes_in(task.round)
        if held is not None or not (frozen or is_vote):
            return held
        source = read_initial_state(artifacts) if is_whole else self.held_model(received, artifacts.manifest)
        if source is None or is_vote:
            return source
        return {name: source[name] for name in frozen}

    def _nearest(self, task: RoundTask, artifacts: Artifacts) -> Delta | None:
        """The first delta whose base this device holds, as a frame or as the checkpoint."""
        # A device that only predicts has no checkpoint.
        initial = artifacts.manifest.initial_model if artifacts.path("checkpoint").is_file() else None
        held = (delta for delta in task.deltas if delta.base == initial or self._cache.model(delta.base) is not None)
        return next(held, None)

    def _base(self, delta: Delta, artifacts: Artifacts) -> State:
        frame = self._cache.model(delta.base)
        return read_initial_state(artifacts) if frame is None else decode_frame(frame, artifacts.manifest.shapes).state


def _require_room(folder: Path, needed: int) -> None:
    """Raise OSError if the disk lacks room for this many bytes; called before the download starts."""
    place = next(parent for parent in (folder, *folder.parents) if parent.exists())
    disk = os.statvfs(place)
    free = disk.f_bavail * disk.f_frsize
    if needed > free:
        raise OSError(errno.ENOSPC, f"the artifacts take {needed} bytes, {place} has {free} free; make room there")


def _whole_frame(state: State, task: RoundTask, manifest: Manifest) -> bytes:
    """A self-contained frame for a model that arrived as a difference."""
    return frame_of(state, run=task.run, round_number=task.round, base_id=task.model_id, prunable=manifest.prunable)
