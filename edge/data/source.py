"""A device's data as it is now: read once, then looked at before every round.

A look is cheap. It compares names, sizes and times of change, and reads only what differs. What cannot be read is
counted and named, and never stops the device: an image is left out, a file keeps the samples that it had before.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from sparsyedge.edge.data.dataset import Dataset, Samples

__all__ = ["DataSource", "FixedSource", "Found", "Part", "compared", "nothing_yet"]

COUNT_BYTES = 8


@dataclass(frozen=True)
class Part:
    """Samples, and the names of the classes behind their labels; empty if the data does not name them."""

    samples: Samples
    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a look found: the data from now on, and how it differs from before."""

    train: Part | None
    """None if there is nothing to train on yet."""
    test: Callable[[], Part | None] = lambda: None
    """Reads the samples to evaluate on, which few devices have; None if there are none. May raise DataError."""
    has_test: bool = False
    """Whether there is such a part, as far as is known; it may be unreadable for a while."""
    added: int = 0
    changed: int = 0
    removed: int = 0
    broken: int = 0
    """Samples that cannot be read now."""
    trouble: str = ""
    """What is wrong with the first of them, or with the data as a whole; empty if nothing is."""

    @property
    def has_changes(self) -> bool:
        """Whether the samples are others than before."""
        return bool(self.added or self.changed or self.removed)


class DataSource(Protocol):
    """Where a device's samples come from."""

    def look(self) -> Found | None:
        """The data as it is now; None if nothing has changed since the last look. The first look reads everything.

        Raises DataError only in the first look, for data that waiting does not mend.
        """


class FixedSource:
    """Data that stays as it is, such as a share of a public data set."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset: Dataset | None = dataset

    def look(self) -> Found | None:
        """All of it, once."""
        dataset, self._dataset = self._dataset, None
        return None if dataset is None else Found(train=Part(dataset.train, dataset.names), added=len(dataset.train))


def nothing_yet(trouble: str, *, broken: int = 0) -> Found:
    """What a first look finds where there is nothing to train on yet."""
    return Found(train=None, trouble=trouble, broken=broken)


def compared(before: Part | None, now: Found) -> Found:
    """Count what is new and what is gone, by the content of the samples: a file of arrays names none of them."""
    old, new = (_contents(part) for part in (before, now.train))
    return replace(now, added=(new - old).total(), removed=(old - new).total())


def _contents(part: Part | None) -> Counter[bytes]:
    if part is None:
        return Counter()
    samples, names = part.samples, part.names if part.samples.task == "classes" else ()
    labels = (names[label].encode() if names else label.tobytes() for label in samples.y)
    return Counter(_hash(sample.tobytes(), label) for sample, label in zip(samples.x, labels, strict=True))


def _hash(content: bytes, label: bytes) -> bytes:
    digest = hashlib.blake2b(label, digest_size=COUNT_BYTES)
    digest.update(content)
    return digest.digest()
