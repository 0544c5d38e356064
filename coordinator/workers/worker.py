"""One worker process: takes jobs from its socket one after the other, until the leader closes it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection

import msgspec
import numpy as np

from sparsyedge.coordinator.aggregation.alignment import compare_stretches
from sparsyedge.coordinator.aggregation.mean import means_of_stretches
from sparsyedge.coordinator.aggregation.pair_cosines import squares_of_stretches
from sparsyedge.coordinator.aggregation.round_base import RoundBase, layout_of
from sparsyedge.coordinator.aggregation.round_entries import EntryFile, RoundEntries
from sparsyedge.coordinator.aggregation.rules import make_entry_rule
from sparsyedge.coordinator.aggregation.update_checks import verify_update
from sparsyedge.coordinator.allocator import give_back_free_memory, give_back_large_blocks
from sparsyedge.coordinator.workers import jobs
from sparsyedge.coordinator.workers.shared_model import SharedModel
from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.tensors import FloatArray

__all__ = ["main"]


class Worker:
    """Answers jobs about the updates of one run."""

    def __init__(self, setup: jobs.Setup) -> None:
        self._run = setup.run
        self._manifest = msgspec.json.decode(setup.manifest, type=Manifest)
        self._layout = layout_of(self._manifest)
        self._model = SharedModel(self._layout, setup.model)
        base = RoundBase(self._manifest, self._layout, self._model.state)
        self._files = [EntryFile(handle, base, number=number) for number, handle in enumerate(setup.files)]
        self._own = self._files[setup.own]
        self._base, self._model_id = base, ""

    def begin(self, job: jobs.Begin) -> None:
        """Forget what was found out about the model before."""
        give_back_free_memory()
        self._base = RoundBase(self._manifest, self._layout, self._model.state)
        self._model_id = job.model_id

    def answer(
        self, job: jobs.Verify | jobs.Sum | jobs.Combine | jobs.Compare | jobs.UnitSums, frame: bytes
    ) -> jobs.Answer:
        """Do a job."""
        try:
            match job:
                case jobs.Verify():
                    return self.verify(job, frame)
                case jobs.Sum():
                    return self.sum(job)
                case jobs.Combine():
                    return self.combine(job)
                case jobs.Compare():
                    return self.compare(job)
                case jobs.UnitSums():
                    return self.add_units(job)
        except OSError as error:
            return jobs.Broken(job=job.job, code=error.errno or 0, reason=error.strerror or str(error))

    def verify(self, job: jobs.Verify, frame: bytes) -> jobs.Answer:
        """Check an update, and write its entries where the others can read them."""
        try:
            found = verify_update(
                frame,
                self._base,
                run=self._run,
                round_number=job.round,
                base_id=self._model_id,
                sha256=job.sha256,
            )
        except FrameError as error:
            return jobs.Refused(job=job.job, reason=str(error))
        self._own.end = job.end
        place, measures = self._own.append(found.update), found.measures
        return jobs.Verified(
            job=job.job,
            file=place.file,
            offset=place.offset,
            entries=place.entries,
            ends=None if place.ends is None else place.ends.tobytes(),
            end=self._own.end,
            change=measures.change.tobytes(),
            pruned=measures.pruned,
            l2=measures.l2,
            cosine=measures.cosine,
            kept=measures.kept,
            norms=measures.norms.tobytes(),
            travelled=found.update.entries,
        )

    def sum(self, job: jobs.Sum) -> jobs.Answer:
        """Take the mean of some stretches."""
        updates = self._entries(job.members)
        return _combined(
            job.job, means_of_stretches(updates, job.stretches, total=job.total, senders_only=job.senders_only)
        )

    def combine(self, job: jobs.Combine) -> jobs.Answer:
        """Combine the entries of some stretches by the run's rule."""
        return _combined(job.job, make_entry_rule(job.config).parts(self._entries(job.members), job.stretches))

    def compare(self, job: jobs.Compare) -> jobs.Answer:
        """Compare all devices in one stretch."""
        ((products, squares),) = compare_stretches(self._entries(job.members), [job.stretch], job.peers)
        return jobs.Compared(job=job.job, products=products.tobytes(), squares=squares.tobytes())

    def add_units(self, job: jobs.UnitSums) -> jobs.Answer:
        """Add up unit vectors in some stretches."""
        inverse = np.frombuffer(job.inverse).reshape(len(job.members), -1)
        found = list(squares_of_stretches(self._entries(job.members), job.stretches, inverse))
        return jobs.UnitSquares(job=job.job, squares=np.stack(found).tobytes())

    def _entries(self, members: list[jobs.PackedMember]) -> RoundEntries:
        return RoundEntries(self._base, self._files, [packed.member() for packed in members])


def _combined(job: int, parts: Iterator[tuple[int, FloatArray]]) -> jobs.Combined:
    """Stretches without their zeros: the leader holds all of the answer at once."""
    sizes: list[int] = []
    positions, values = [], []
    for _, part in parts:
        kept = np.flatnonzero(part)
        positions.append((kept + sum(sizes)).astype(np.uint32))
        values.append(part[kept])
        sizes.append(part.size)
    return jobs.Combined(
        job=job, sizes=sizes, positions=np.concatenate(positions).tobytes(), values=np.concatenate(values).tobytes()
    )


def main() -> None:
    """Serve the leader at the other end of the inherited socket whose descriptor is the first argument."""
    give_back_large_blocks()
    # These go to the whole group; the leader decides when its workers end.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with Connection(int(sys.argv[1])) as leader:
        worker: Worker | None = None
        while True:
            try:
                job = jobs.decode_job(leader.recv_bytes())
                if isinstance(job, jobs.Setup):
                    worker = Worker(job)
                    continue
                assert worker is not None
                if isinstance(job, jobs.Begin):
                    worker.begin(job)
                    continue
                frame = leader.recv_bytes() if isinstance(job, jobs.Verify) else b""
                leader.send_bytes(jobs.encode(worker.answer(job, frame)))
            except (EOFError, ConnectionError):
                return
