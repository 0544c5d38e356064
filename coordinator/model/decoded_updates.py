"""The decoded updates of the open round: where their entries are, and what was measured of them.

They are decoded here, or by worker processes if the run has any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sparsyedge.coordinator.aggregation.measures import Measures
from sparsyedge.coordinator.aggregation.round_entries import EntryFile, Member, Place, RoundEntries
from sparsyedge.coordinator.aggregation.update_checks import verify_update
from sparsyedge.coordinator.model.global_model import GlobalModel
from sparsyedge.coordinator.workers import jobs
from sparsyedge.coordinator.workers.pool import WorkerPool
from sparsyedge.coordinator.workers.threads import Threads
from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.wire.flat_frame import FlatUpdate

__all__ = ["Asked", "Decoded", "DecodedUpdates"]


@dataclass(frozen=True)
class Decoded:
    """A decoded update."""

    place: Place
    measures: Measures
    entries: int
    """How many values travelled."""


class Asked(NamedTuple):
    """An update that a worker is decoding."""

    device: str
    update: str


class DecodedUpdates:
    """By hash, the updates to the present model that this process has decoded. A new process begins with none."""

    def __init__(self, run: str, model: GlobalModel, folder: Path, pool: WorkerPool | None) -> None:
        self._run = run
        self._model = model
        self._pool = pool
        self._threads = Threads()
        self._files = pool.files if pool else [EntryFile.create(folder, model.base)]
        self._found: dict[str, Decoded] = {}
        self._asked: dict[int, Asked] = {}
        if pool:
            pool.begin(model.id)

    def __contains__(self, update: str) -> bool:
        return update in self._found

    def __getitem__(self, update: str) -> Decoded:
        return self._found[update]

    @property
    def is_busy(self) -> bool:
        """Whether updates are being decoded."""
        return bool(self._asked)

    def decode(self, update: str, frame: bytes, *, round_number: int) -> None:
        """Decode the update with this hash here and now; raises FrameError if it must not be averaged."""
        model = self._model
        verified = verify_update(
            frame, model.base, run=self._run, round_number=round_number, base_id=model.id, sha256=update
        )
        place = self._files[0].append(verified.update)
        self._found[update] = Decoded(place, verified.measures, verified.update.entries)

    def ask(self, update: str, frame: bytes, *, round_number: int, device: str = "") -> bool:
        """Have a worker decode an update; False if the run has none."""
        if self._pool is None:
            return False
        self._asked[self._pool.submit(frame, round_number=round_number, sha256=update)] = Asked(device, update)
        return True

    def answers(self, timeout_s: float = 0.0) -> Iterator[tuple[Asked, str]]:
        """The updates that workers are done with, each with the reason why it must not be averaged, if there is one."""
        if self._pool is None or not self._asked:
            return
        for answer in self._pool.collect(timeout_s):
            asked = self._asked.pop(answer.job, None)
            if asked is None:
                continue
            if isinstance(answer, jobs.Verified):
                self._found[asked.update] = Decoded(answer.place, answer.measures, answer.travelled)
                yield asked, ""
            elif isinstance(answer, jobs.Refused):
                yield asked, answer.reason

    def decode_all(self, frames: Iterable[tuple[str, bytes]], *, round_number: int) -> None:
        """Decode updates that an earlier process has accepted, by hash; raises FrameError if one cannot be averaged."""
        wanted = set()
        for update, frame in frames:
            wanted.add(update)
            if not self.ask(update, frame, round_number=round_number):
                self.decode(update, frame, round_number=round_number)
            # Frames must not pile up.
            while self._pool and len(self._asked) > 2 * len(self._files):
                self._await(wanted)
        while wanted - self._found.keys():
            self._await(wanted)

    def _await(self, wanted: set[str]) -> None:
        for asked, reason in self.answers(timeout_s=1.0):
            if reason and asked.update in wanted:
                raise FrameError(reason)

    def entries(self, members: Iterable[tuple[str, float, Mapping[str, float]]]) -> RoundEntries:
        """These updates (hash, weight, scales by tensor) in this order."""
        found = [Member(self._found[update].place, weight, scales) for update, weight, scales in members]
        return RoundEntries(self._model.base, self._files, found, self._pool or self._threads)

    def update(self, update: str) -> FlatUpdate:
        """One update, whole."""
        found, base = self._found[update], self._model.base
        file = self._files[found.place.file]
        listed = file.read(found.place, 0, file.blocks)
        others = base.flat.others.copy()
        others[file.moving] = file.read_others(found.place)
        return FlatUpdate(listed.positions, listed.values, others, found.entries)

    def begin(self) -> None:
        """Forget the last round's updates: the model is another now. Their space on disk is used again."""
        self._found.clear()
        self._asked.clear()
        if self._pool:
            self._pool.begin(self._model.id)
        else:
            self._files[0].end = 0
