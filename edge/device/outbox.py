"""The update that a device has made and may still have to deliver; it outlives the process that made it.

Training is a function of the task and the data, so an update on disk that carries the key of a task is the answer to
that task, whenever it is asked: after a crash, after a broker's restart, after a coordinator forgot it.

A lossy update leaves a residual for the next one (edge/wire/error_feedback.py). One file has the update, the residual
that went into it and the one that it left, and is replaced as a whole: a crash finds the state before or after the
update. The first residual is spent, and the second one counts, only once the update is known to be accepted.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import msgspec

from sparsyedge.edge.protocol.messages import Offer, RoundTask
from sparsyedge.edge.storage import write_atomically

__all__ = ["Outbox", "Pending", "task_key"]

log = logging.getLogger(__name__)


class Pending(msgspec.Struct, frozen=True):
    """An update on disk, and the offer that announces it."""

    key: str
    offer: Offer


class _Residual(msgspec.Struct, frozen=True):
    """What the update of a round left over, packed; it means something within its run and with its weights only."""

    run: str
    manifest: str
    round: int
    content: bytes

    def fits(self, task: RoundTask) -> bool:
        """Whether it may go into an update for the task: a run that starts over has nothing left over."""
        return (self.run, self.manifest) == (task.run, task.manifest.sha256) and self.round < task.round


class _Content(msgspec.Struct, frozen=True):
    """What the file holds."""

    pending: Pending | None
    """None after a refusal: only the residual that went into the update is still worth keeping."""
    frame: bytes
    before: _Residual | None
    """What went into the update."""
    after: _Residual | None
    """What it left."""


# Made once, before there are threads: see edge/protocol/messages.py.
_CONTENT_DECODER: msgspec.msgpack.Decoder[_Content] = msgspec.msgpack.Decoder(_Content)


def task_key(task: RoundTask, data: str) -> str:
    """Names all that a device's update depends on, the digest of its `data` included.

    Deadline and cohort may change without making another update.
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
    )
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()


class Outbox:
    """At most one update, under a folder that it makes when it first writes."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "update.outbox"
        self._accepted_path = directory / "accepted"
        content = self._load()
        self.pending = content.pending if content else None

    def put(self, pending: Pending, frame: bytes, *, task: RoundTask, residual: bytes = b"") -> None:
        """Keep an update, and the residual that it left, in place of those before; returns when they are on disk."""
        after = _Residual(task.run, task.manifest.sha256, task.round, residual) if residual else None
        self._write(_Content(pending, frame, self._residual(task), after))

    def frame(self) -> bytes:
        """The bytes of the pending update."""
        content = self._load()
        assert content is not None
        return content.frame

    def residual(self, task: RoundTask) -> bytes:
        """What goes into the update for this task, packed; empty where there is nothing."""
        residual = self._residual(task)
        return residual.content if residual else b""

    def is_in_doubt(self, task: RoundTask) -> bool:
        """Whether the next residual depends on what became of an update of an earlier round, which is not known."""
        content = self._load()
        after = content.after if content else None
        return self.pending is not None and after is not None and after.fits(task) and not self._is_accepted()

    def accept(self) -> None:
        """Note that the pending update was accepted; it stays, to be offered again to whoever asks again."""
        assert self.pending is not None
        content = self._load()
        if content is not None and content.after is not None:
            write_atomically(self._accepted_path, self.pending.offer.update.sha256.encode())

    def refuse(self) -> None:
        """Drop the pending update, which will never be averaged: what went into it is still to be said."""
        content = self._load()
        if content is None or content.before is None:
            self.clear()
        else:
            self._write(_Content(None, b"", None, content.before))

    def clear(self) -> None:
        """Forget the update and all that is left over."""
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
        """Whether the note about an accepted update is there and about the one that is."""
        assert self.pending is not None
        try:
            return self._accepted_path.read_text() == self.pending.offer.update.sha256
        except FileNotFoundError:
            return False

    def _write(self, content: _Content) -> None:
        write_atomically(self._path, msgspec.msgpack.encode(content))
        self.pending = content.pending

    def _load(self) -> _Content | None:
        """What is on disk, perhaps from an earlier process, if it is whole."""
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
