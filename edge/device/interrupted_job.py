"""A local job that was cut short: what the device had learned by the end of its last finished epoch, on disk.

Training is a function of the task, the data and the state before an epoch, so a job that goes on from here gives, bit
for bit, the update that it would have given.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.phase_costs import PhaseCost
from sparsyedge.edge.storage import write_atomically
from sparsyedge.edge.tensors import State
from sparsyedge.edge.wire.frame import decode_frame, encode_frame

__all__ = ["JobProgress", "UnfinishedJob"]

log = logging.getLogger(__name__)

LENGTH = struct.Struct("<I")


class JobProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a job is, and what that has cost."""

    key: str
    """The task's; see edge/device/outbox.py."""
    epochs: int
    steps: int
    loss: float
    phases: dict[str, PhaseCost]
    bytes_down: int


class UnfinishedJob:
    """At most one job in one file, which is whole or absent."""

    def __init__(self, path: Path, shapes: Mapping[str, tuple[int, ...]], prunable: Collection[str]) -> None:
        self._path = path
        self._shapes = shapes
        self._prunable = prunable

    def save(self, progress: JobProgress, state: State) -> None:
        """Keep the state after an epoch in place of the one before; returns when it is on disk."""
        head = msgspec.json.encode(progress)
        encoded = encode_frame(state, run="job", round_number=0, base_id=progress.key, prunable=self._prunable)
        write_atomically(self._path, LENGTH.pack(len(head)) + head + encoded.frame)

    def load(self, key: str) -> tuple[JobProgress, State] | None:
        """The job of that task, if it was cut short after an epoch; another task's is of no use to anybody."""
        try:
            content = self._path.read_bytes()
            (length,) = LENGTH.unpack_from(content)
            progress = msgspec.json.decode(content[LENGTH.size : LENGTH.size + length], type=JobProgress)
            if progress.key != key:
                return None
            return progress, decode_frame(content[LENGTH.size + length :], self._shapes).state
        except FileNotFoundError:
            return None
        except (struct.error, msgspec.DecodeError, UnicodeDecodeError, FrameError) as error:
            log.warning("the unfinished job in %s is damaged (%s); removed, it begins again", self._path, error)
            self.clear()
            return None

    def clear(self) -> None:
        """Forget the job."""
        self._path.unlink(missing_ok=True)
