"""The update that a device has made and may still have to deliver; it outlives the process that made it.

Training is a function of the task and the data, so an update on disk that carries the key of a task is the answer to
that task, whenever it is asked: after a crash, after a broker's restart, after a coordinator forgot it.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import msgspec

from sparsyedge.edge.messages import Offer, RoundTask
from sparsyedge.edge.storage import sha256_file, write_atomically

__all__ = ["Outbox", "Pending", "task_key"]

log = logging.getLogger(__name__)


class Pending(msgspec.Struct, frozen=True):
    """An update on disk, and the offer that announces it."""

    key: str
    offer: Offer


def task_key(task: RoundTask, samples: int) -> str:
    """Names all that a device's update depends on; deadline and cohort may change without making another update."""
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
        samples,
    )
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()


class Outbox:
    """At most one update, under a folder that it makes when it first writes."""

    def __init__(self, directory: Path) -> None:
        self._offer_path = directory / "offer.json"
        self._frame_path = directory / "update.frame"
        self.pending = self._load()

    def put(self, pending: Pending, frame: bytes) -> None:
        """Keep an update in place of the one before; returns when it is on disk."""
        self.clear()
        write_atomically(self._frame_path, frame)
        # The offer comes last: without it the frame is not an update.
        write_atomically(self._offer_path, msgspec.json.encode(pending))
        self.pending = pending

    def frame(self) -> bytes:
        """The bytes of the pending update."""
        return self._frame_path.read_bytes()

    def clear(self) -> None:
        """Forget the update."""
        self.pending = None
        self._offer_path.unlink(missing_ok=True)
        self._frame_path.unlink(missing_ok=True)

    def _load(self) -> Pending | None:
        """What an earlier process left, if it is whole."""
        try:
            pending = msgspec.json.decode(self._offer_path.read_bytes(), type=Pending)
            whole = sha256_file(self._frame_path) == pending.offer.update.sha256
        except FileNotFoundError:
            return None
        except msgspec.DecodeError:
            whole = False
        if not whole:
            log.warning("the update in %s is damaged; removed, it will be made again", self._frame_path.parent)
            self.clear()
            return None
        return pending
