"""What the leader asks of a worker process, and what the worker answers: msgpack messages over a socket."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sparsyedge.coordinator.aggregation.measures import Measures
from sparsyedge.coordinator.aggregation.round_entries import Member, Place
from sparsyedge.coordinator.aggregation_config import AggregationConfig

__all__ = [
    "Answer",
    "Begin",
    "Broken",
    "Combine",
    "Combined",
    "Compare",
    "Compared",
    "Job",
    "PackedMember",
    "Refused",
    "Setup",
    "Sum",
    "UnitSquares",
    "UnitSums",
    "Verified",
    "Verify",
    "decode_answer",
    "decode_job",
    "encode",
]


class Setup(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The first message: what the worker has inherited."""

    run: str
    manifest: bytes
    model: int
    """The descriptor of the shared model."""
    files: tuple[int, ...]
    """The descriptors of the files with entries."""
    own: int
    """Which of them the worker writes."""


class Begin(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The shared memory holds another model now."""

    model_id: str


class Verify(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Decode and check the frame that follows as a message of its own."""

    job: int
    round: int
    end: int
    """Where to write its entries."""
    sha256: str | None = None
    """The promised hash; None if it was checked."""


class PackedMember(msgspec.Struct, frozen=True, array_like=True):
    """A member of a round."""

    file: int
    offset: int
    entries: int
    ends: bytes | None
    weight: float
    scales: dict[str, float]

    @classmethod
    def of(cls, member: Member) -> PackedMember:
        place = member.place
        ends = None if place.ends is None else place.ends.tobytes()
        return cls(place.file, place.offset, place.entries, ends, member.weight, dict(member.scales))

    def member(self) -> Member:
        return Member(Place(self.offset, self.entries, _ends(self.ends), self.file), self.weight, self.scales)


class Sum(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Take the mean of stretches."""

    job: int
    stretches: list[tuple[int, int]]
    members: list[PackedMember]
    total: float
    senders_only: bool


class Combine(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Combine the entries of stretches by a rule that looks at one entry of all devices at a time."""

    job: int
    stretches: list[tuple[int, int]]
    members: list[PackedMember]
    config: AggregationConfig


class Compare(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Compare the devices in one stretch."""

    job: int
    stretch: tuple[int, int]
    members: list[PackedMember]
    peers: list[int]


class UnitSums(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Add up the devices' unit vectors in stretches."""

    job: int
    stretches: list[tuple[int, int]]
    members: list[PackedMember]
    inverse: bytes
    """One over the norm of each weight, a row per device."""


class Verified(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The update may be averaged; its entries are in the worker's file."""

    job: int
    file: int
    offset: int
    entries: int
    ends: bytes | None
    end: int
    """Where the next one goes."""
    change: bytes
    pruned: float
    l2: float
    cosine: float
    kept: int
    norms: bytes
    travelled: int

    @property
    def place(self) -> Place:
        return Place(self.offset, self.entries, _ends(self.ends), self.file)

    @property
    def measures(self) -> Measures:
        norms = np.frombuffer(self.norms)
        return Measures(np.frombuffer(self.change), self.pruned, self.l2, self.cosine, self.kept, norms)


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The update must not be averaged."""

    job: int
    reason: str


class Broken(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The machine is at fault, not the update: a disk that is full, for one."""

    job: int
    code: int
    reason: str


class Combined(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What became of the stretches of a `Sum` or a `Combine`, one after the other, without zeros.

    Positions count from the first one's start.
    """

    job: int
    sizes: list[int]
    positions: bytes
    values: bytes


class Compared(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Products and squares of a stretch."""

    job: int
    products: bytes
    squares: bytes


class UnitSquares(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The squares of sums of unit vectors by weight, a row per stretch."""

    job: int
    squares: bytes


Job = Setup | Begin | Verify | Sum | Combine | Compare | UnitSums
Answer = Verified | Refused | Broken | Combined | Compared | UnitSquares

_JOBS: msgspec.msgpack.Decoder[Job] = msgspec.msgpack.Decoder(Job)
_ANSWERS: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def encode(message: Job | Answer) -> bytes:
    return msgspec.msgpack.encode(message)


def decode_job(content: bytes) -> Job:
    return _JOBS.decode(content)


def decode_answer(content: bytes) -> Answer:
    return _ANSWERS.decode(content)


def _ends(packed: bytes | None) -> NDArray[Any] | None:
    return None if packed is None else np.frombuffer(packed, dtype=np.int32)
