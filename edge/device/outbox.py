"""The device's finished update, kept on disk until delivered; it outlives the process that made it.

Training is a function of the task and the data, so an update with the task's key answers that task at any time: after a
crash, after a broker restart, after the coordinator forgot it.

A lossy update leaves a residual for the next one (edge/wire/error_feedback.py). One file holds the update, the residual
that went into it and the one it left. We replace the file as a whole, so a crash leaves the state before or after the
update, never a mix. Only once the update is known to be accepted does the second residual replace the first.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import msgspec
from msgspec import UNSET

from sparsyedge.edge.protocol.messages import Offer, RoundTask
from sparsyedge.edge.storage import write_atomically

__all__ = ["Outbox", "Pending", "task_key"]

log = logging.getLogger(__name__)


class Pending(msgspec.Struct, frozen=True):
    """An update on disk, and the offer that announces it."""

    key: str
    offer: Offer


class _Residual(msgspec.Struct, frozen=True):
    """What a round's update left over, packed; valid only within its run and for its weights."""

    run: str
    manifest: str
    round: int
    content: bytes

    def fits(self, task: RoundTask) -> bool:
        """Whether it may go into an update for the task; a run that starts over has no residual."""
        return (self.run, self.manifest) == (task.run, task.manifest.sha256) and self.round < task.round


class _Content(msgspec.Struct, frozen=True):
    """What the file holds."""

    pending: Pending | None
    """None after a refusal: then only the residual that went into the update is worth keeping."""
    frame: bytes
    before: _Residual | None
    """The residual that went into the update."""
    after: _Residual | None
    """The residual that the update left."""


# Created once, before any thread starts: see edge/protocol/messages.py.
_CONTENT_DECODER: msgspec.msgpack.Decoder[_Content] = msgspec.msgpack.Decoder(_Content)


def task_key(task: RoundTask, data: str) -> str:
    """Hash everything that a device's update depends on, including the digest of its `data`.

    Deadline and cohort are left out: they may change without changing the update.
    """
    facts = (
        task.run,
        task.round,
        task.manifest.sha256,
        task.model_id,
        task.learning_rate,
        task.epochs,
        task.batch_size,
        task.sparsity,
        task.seed,
        task.codec,
        data,
        # Only where they are set: the key of any other task stays what it was before there were such settings.
        *(("holdout", task.holdout) if task.holdout is not UNSET else ()),
        *(("evaluation", task.evaluation) if task.evaluation is not UNSET else ()),
    )
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()


class Outbox:
    """At most one update, in a folder created on the first write."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "update.outbox"
        self._accepted_path = directory / "accepted"
        content = self._load()
        self.pending = content.pending if content else None

    def put(self, pending: Pending, frame: bytes, *, task: RoundTask, residual: bytes = b"") -> None:
        """Store an update and the residual it left, replacing the previous ones; both are on disk when this returns."""
        after = _Residual(task.run, task.manifest.sha256, task.round, residual) if residual else None
        self._write(_Content(pending, frame, self._residual(task), after))

    def frame(self) -> bytes:
        """The bytes of the pending update."""
        content = self._load()
        assert content is not None
        return content.frame

    def residual(self, task: RoundTask) -> bytes:
        """The packed residual for this task's update; empty if there is none."""
        residual = self._residual(task)
        return residual.content if residual else b""

    def is_in_doubt(self, task: RoundTask) -> bool:
        """Whether the next residual depends on an update from an earlier round whose verdict is unknown."""
        content = self._load()
        after = content.after if content else None
        return self.pending is not None and after is not None and after.fits(task) and not self._is_accepted()

    def accept(self) -> None:
        """Record that the pending update was accepted; it stays on disk in case the coordinator asks again."""
        assert self.pending is not None
        content = self._load()
        if content is not None and content.after is not None:
            write_atomically(self._accepted_path, self.pending.offer.update.sha256.encode())

    def refuse(self) -> None:
        """Drop the pending update but keep the residual that went into it: it has not been averaged yet."""
        content = self._load()
        if content is None or content.before is None:
            self.clear()
        else:
            self._write(_Content(None, b"", None, content.before))

    def clear(self) -> None:
        """Delete the update and its residuals."""
        self.pending = None
        self._path.unlink(missing_ok=True)
        self._accepted_path.unlink(missing_ok=True)

    def _residual(self, task: RoundTask) -> _Residual | None:
        content = self._load()
        if content is None:
            return None
        counts = content.after if content.pending is None or self._is_accepted() else content.before
        return counts if counts is not None and counts.fits(task) else None

    def _is_accepted(self) -> bool:
        """Whether there is an acceptance note, and it is for the pending update."""
        assert self.pending is not None
        try:
            return self._accepted_path.read_text() == self.pending.offer.update.sha256
        except FileNotFoundError:
            return False

    def _write(self, content: _Content) -> None:
        write_atomically(self._path, msgspec.msgpack.encode(content))
        self.pending = content.pending

    def _load(self) -> _Content | None:
        """The content on disk, perhaps from an earlier process; removes a damaged file."""
        try:
            content = _CONTENT_DECODER.decode(self._path.read_bytes())
            pending = content.pending
            whole = pending is None or hashlib.sha256(content.frame).hexdigest() == pending.offer.update.sha256
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError):
            whole = False
        if not whole:
            log.warning("the update in %s is damaged; removed, it will be made again", self._path)
            self.clear()
            return None
        return content
