"""What a device's optimizer remembers from round to round, on disk, for runs that say `keep`.

A round begins with the memory that an earlier one left, never with its own: if its job is done again, after a crash or
for a coordinator that went back, the same update comes out. So the memory before the last round stays beside the new
one.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path

from sparsyedge.edge.errors import DamagedFileError
from sparsyedge.edge.protocol.messages import RoundTask
from sparsyedge.edge.storage import write_atomically
from sparsyedge.edge.tensors import State
from sparsyedge.edge.wire.local_tensors import open_tensors, pack_tensors

__all__ = ["OptimizerMemory"]

log = logging.getLogger(__name__)

SUFFIX = ".optimizer"


class OptimizerMemory:
    """The memories of the last rounds, in a folder created on the first write."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, task: RoundTask, shapes: Mapping[str, tuple[int, ...]]) -> State | None:
        """What the last round before the task's left; None in a run's first round, or if it is lost."""
        for number in sorted(self._rounds(task), reverse=True):
            if number >= task.round:
                continue
            path = self._path(task, number)
            try:
                return dict(open_tensors(path.read_bytes()).tensors(shapes))
            except (DamagedFileError, OSError) as error:
                log.warning("the optimizer's memory in %s is lost (%s); it begins afresh", path, error)
                path.unlink(missing_ok=True)
                return None
        return None

    def save(self, task: RoundTask, state: State) -> None:
        """Keep what the task's round left, and the memory that the round began with; remove all others."""
        write_atomically(self._path(task, task.round), pack_tensors(state))
        before = max((number for number in self._rounds(task) if number < task.round), default=task.round)
        keep = {self._path(task, number) for number in (task.round, before)}
        for path in self._folder.glob(f"*{SUFFIX}"):
            if path not in keep:
                path.unlink(missing_ok=True)

    def _rounds(self, task: RoundTask) -> list[int]:
        """The rounds of the task's run that left a memory."""
        found = (path.name.removesuffix(SUFFIX).split("-") for path in self._folder.glob(f"{_run(task)}-*{SUFFIX}"))
        return [int(number) for _, number in found if number.isdecimal()]

    def _path(self, task: RoundTask, number: int) -> Path:
        return self._folder / f"{_run(task)}-{number}{SUFFIX}"


def _run(task: RoundTask) -> str:
    """A name for a run and its artifacts; a memory is of no use to others."""
    return hashlib.sha256(json.dumps([task.run, task.manifest.sha256]).encode()).hexdigest()[:16]
