"""Fetches what a task needs and the disk lacks: artifacts and models."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection
from pathlib import Path

from sparsyedge.edge.device.cache import Cache
from sparsyedge.edge.device.courier import Courier
from sparsyedge.edge.errors import FrameError, SecurityError
from sparsyedge.edge.model.artifacts import MANIFEST_NAME, Artifacts, Manifest, decode_manifest
from sparsyedge.edge.native import library_path
from sparsyedge.edge.protocol.messages import Blob, Delta, RoundTask
from sparsyedge.edge.security.signature import check_library, check_signature
from sparsyedge.edge.tensors import State, model_id
from sparsyedge.edge.wire.envelope import max_frame_bytes
from sparsyedge.edge.wire.frame import decode_frame, frame_of

__all__ = ["TaskInputs"]

MAX_MANIFEST_BYTES = 16 << 20
"""The device knows nothing about the artifacts before it has the manifest; this is a hundred times a usual one."""

Wanted = Callable[[], bool]
"""Asked again and again during a fetch; once it says no, Abandoned is raised."""


class TaskInputs:
    """Fetches what the cache lacks and keeps it there; uses nothing whose hash differs from the announced one."""

    def __init__(self, courier: Courier, cache: Cache, *, signing_key: str | None) -> None:
        """With a signing key, artifacts that its owner has not signed are refused."""
        self._courier = courier
        self._cache = cache
        self._signing_key = signing_key

    def artifacts(self, task: RoundTask, *, roles: Collection[str], wanted: Wanted) -> Artifacts:
        """The task's artifacts, with the files of these roles."""
        sha256 = task.manifest.sha256
        folder = self._cache.folder(sha256)
        if self._cache.has_file(sha256, MANIFEST_NAME, sha256=sha256):
            content = (folder / MANIFEST_NAME).read_bytes()
        else:
            content = self._fetch(task.manifest, "manifest", at_most=MAX_MANIFEST_BYTES, wanted=wanted)
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
            # Files are cut into chunks as the manifest itself is.
            blob = Blob(sha256=file.sha256, bytes=file.bytes, chunk_bytes=task.manifest.chunk_bytes)
            self._cache.keep_file(sha256, file.name, self._courier.fetch(blob, wanted=wanted))
        self._cache.keep_file(sha256, MANIFEST_NAME, content)
        return Artifacts(folder, manifest)

    def check_bounds(self, task: RoundTask, manifest: Manifest) -> None:
        """Raise SecurityError where a task asks for more than the signed manifest allows, whoever has the run's key."""
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

    def model(self, task: RoundTask, manifest: Manifest, *, wanted: Wanted) -> State:
        """The task's model, which must be the one that the task names; raises FrameError where it is not."""
        frame = self._cache.model(task.model_id)
        delta, base = self._nearest(task) or (None, b"")
        try:
            if frame is not None:
                state = decode_frame(frame, manifest.shapes).state
            elif delta is not None:
                held = decode_frame(base, manifest.shapes).state
                difference = self._fetch(delta.model, "model", at_most=max_frame_bytes(manifest.shapes), wanted=wanted)
                state = decode_frame(difference, manifest.shapes, held).state
            else:
                frame = self._fetch(task.model, "model", at_most=max_frame_bytes(manifest.shapes), wanted=wanted)
                state = decode_frame(frame, manifest.shapes).state
            found = model_id(state)
            if found != task.model_id:
                raise FrameError(f"the frame announced as model {task.model_id[:12]} holds model {found[:12]}")
        except FrameError:
            # The next attempt fetches the model whole.
            for model in (task.model_id, *([delta.base] if delta else [])):
                self._cache.drop_model(model)
            raise
        self._cache.keep_model(task.model_id, frame or _whole_frame(state, task, manifest))
        return state

    def held_model(self, task: RoundTask, manifest: Manifest) -> State | None:
        """The task's model once more, from disk: what both sides hold need not travel. None for that of the checkpoint.

        It is read again rather than kept, since memory is what training is short of.
        """
        frame = self._cache.model(task.model_id)
        return None if frame is None else decode_frame(frame, manifest.shapes).state

    def _fetch(self, blob: Blob, what: str, *, at_most: int, wanted: Wanted) -> bytes:
        if blob.bytes > at_most:
            raise FrameError(f"the task announces a {what} of {blob.bytes} bytes; at most {at_most} are allowed")
        return self._courier.fetch(blob, wanted=wanted)

    def _nearest(self, task: RoundTask) -> tuple[Delta, bytes] | None:
        """The latest difference to a model that this device holds, and that model's frame."""
        for delta in task.deltas:
            base = self._cache.model(delta.base)
            if base is not None:
                return delta, base
        return None


def _require_room(folder: Path, needed: int) -> None:
    """Raise OSError where the disk has no room for so many bytes, before any of them is fetched."""
    place = next(parent for parent in (folder, *folder.parents) if parent.exists())
    disk = os.statvfs(place)
    free = disk.f_bavail * disk.f_frsize
    if needed > free:
        raise OSError(errno.ENOSPC, f"the artifacts take {needed} bytes, {place} has {free} free; make room there")


def _whole_frame(state: State, task: RoundTask, manifest: Manifest) -> bytes:
    """A model that came as a difference, as a frame that stands alone."""
    return frame_of(state, run=task.run, round_number=task.round, base_id=task.model_id, prunable=manifest.prunable)
