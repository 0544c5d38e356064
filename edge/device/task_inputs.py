"""Fetches the artifacts and models that a task needs and the disk lacks."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection
from pathlib import Path

from sparsyedge.edge.device.blob_source import BlobSource
from sparsyedge.edge.device.cache import Cache
from sparsyedge.edge.errors import FrameError, SecurityError
from sparsyedge.edge.model.artifacts import MANIFEST_NAME, Artifacts, Manifest, decode_manifest
from sparsyedge.edge.model.checkpoint import read_initial_state
from sparsyedge.edge.native import library_path
from sparsyedge.edge.protocol.messages import Blob, Delta, RoundTask
from sparsyedge.edge.security.signature import check_library, check_signature
from sparsyedge.edge.tensors import State, model_id
from sparsyedge.edge.wire.envelope import max_frame_bytes
from sparsyedge.edge.wire.frame import decode_frame, frame_of

__all__ = ["TaskInputs"]

MAX_MANIFEST_BYTES = 16 << 20
"""A fixed limit, since only the manifest itself says how large things are; a hundred times the usual size."""

Wanted = Callable[[], bool]
"""Polled during a fetch; once it returns False, the fetch raises Abandoned."""


class TaskInputs:
    """Fetches what the cache lacks and stores it there; rejects anything whose hash differs from the announced one."""

    def __init__(self, source: BlobSource, cache: Cache, *, signing_key: str | None) -> None:
        """With a signing key, refuses artifacts not signed with it."""
        self._source = source
        self._cache = cache
        self._signing_key = signing_key

    def artifacts(self, task: RoundTask, *, roles: Collection[str], wanted: Wanted) -> Artifacts:
        """The task's artifacts, including the files for these roles."""
        sha256 = task.manifest.sha256
        folder = self._cache.folder(sha256)
        if self._cache.has_file(sha256, MANIFEST_NAME, sha256=sha256):
            content = (folder / MANIFEST_NAME).read_bytes()
        else:
            content = self._fetch(task, task.manifest, "manifest", at_most=MAX_MANIFEST_BYTES, wanted=wanted)
        if self._signing_key is not None:
            check_signature(content, task.signature, signing_key=self._signing_key)
        manifest = decode_manifest(content, source=f"the manifest of run {task.run}")
        if self._signing_key is not None:
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

    def check_bounds(self, task: RoundTask, manifest: Manifest) -> None:
        """Raise SecurityError if the task exceeds the signed manifest's limits; holds even if the run's key leaks."""
        if self._signing_key is None:
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
        delta = self._nearest(task, manifest)
        try:
            if frame is not None:
                state = decode_frame(frame, manifest.shapes).state
            elif delta is not None:
                held = self._base(delta, artifacts)
                at_most = max_frame_bytes(manifest.shapes)
                difference = self._fetch(task, delta.model, "model", at_most=at_most, wanted=wanted)
                state = decode_frame(difference, manifest.shapes, held).state
            else:
                frame = self._fetch(task, task.model, "model", at_most=max_frame_bytes(manifest.shapes), wanted=wanted)
                state = decode_frame(frame, manifest.shapes).state
            found = model_id(state)
            if found != task.model_id:
                raise FrameError(f"the frame announced as model {task.model_id[:12]} holds model {found[:12]}")
        except FrameError:
            # Then the next attempt fetches the whole model.
            for model in (task.model_id, *([delta.base] if delta else [])):
                self._cache.drop_model(model)
            raise
        self._cache.keep_model(task.model_id, frame or _whole_frame(state, task, manifest))
        return state

    def held_model(self, task: RoundTask, manifest: Manifest) -> State | None:
        """Read the task's model from disk again, as the base that both sides hold; None for the checkpoint's model.

        Not kept in memory, because training needs the memory.
        """
        frame = self._cache.model(task.model_id)
        return None if frame is None else decode_frame(frame, manifest.shapes).state

    def _fetch(self, task: RoundTask, blob: Blob, what: str, *, at_most: int, wanted: Wanted) -> bytes:
        if blob.bytes > at_most:
            raise FrameError(f"the task announces a {what} of {blob.bytes} bytes; at most {at_most} are allowed")
        return self._source.fetch(task, blob, wanted=wanted)

    def base_of_update(self, task: RoundTask, artifacts: Artifacts) -> State | None:
        """What both sides hold of the task's model: all of it, or of the checkpoint's model what no step changes.

        None if that is nothing.
        """
        held, frozen = self.held_model(task, artifacts.manifest), artifacts.manifest.frozen
        if held is not None or not frozen:
            return held
        initial = read_initial_state(artifacts)
        return {name: initial[name] for name in frozen}

    def _nearest(self, task: RoundTask, manifest: Manifest) -> Delta | None:
        """The first delta whose base this device holds, as a frame or as the checkpoint."""
        held = (
            delta
            for delta in task.deltas
            if delta.base == manifest.initial_model or self._cache.model(delta.base) is not None
        )
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
