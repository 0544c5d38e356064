"""A local job that was cut short: the state after its last finished epoch, on disk.

Training depends only on the task, the data and the state before an epoch, so a resumed job produces the same update,
bit for bit, as an uninterrupted one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

from sparsyedge.edge.errors import DamagedFileError
from sparsyedge.edge.phase_costs import PhaseCost
from sparsyedge.edge.storage import write_atomically
from sparsyedge.edge.tensors import State
from sparsyedge.edge.wire.local_tensors import open_tensors, pack_tensors

__all__ = ["JobProgress", "UnfinishedJob"]

log = logging.getLogger(__name__)


class JobProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a job has come, and its cost so far."""

    key: str
    """The task's; see edge/device/outbox.py."""
    epochs: int
    steps: int
    loss: float
    phases: dict[str, PhaseCost]
    bytes_down: int
    loss_rms: float | None = None


class UnfinishedJob:
    """At most one job, in a file that is either complete or absent."""

    def __init__(self, path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._path = path
        self._shapes = shapes

    def save(self, progress: JobProgress, state: State) -> None:
        """Replace the saved state with the one after this epoch; it is on disk when this returns."""
        write_atomically(self._path, pack_tensors(state, note=msgspec.json.encode(progress)))

    def load(self, key: str) -> tuple[JobProgress, State] | None:
        """Return this task's job if it finished at least one epoch; None if there is none, or it is another task's."""
        try:
            opened = open_tensors(self._path.read_bytes())
            progress = msgspec.json.decode(opened.note, type=JobProgress)
            if progress.key != key:
                return None
            return progress, dict(opened.tensors(self._shapes))
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError, DamagedFileError) as error:
            log.warning("the unfinished job in %s is damaged (%s); removed, it begins again", self._path, error)
            self.clear()
            return None

    def clear(self) -> None:
        """Forget the job."""
        self._path.unlink(missing_ok=True)
