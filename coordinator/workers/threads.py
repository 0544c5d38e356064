"""Stretches of the model shared among threads of the coordinator's own process, while it closes a round.

Nearly all of that work is in native code and in BLAS, which let other threads run. Cuts and sums are those of a single
thread, so the number of threads changes no bit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sparsyedge.coordinator.aggregation.alignment import compare_stretches
from sparsyedge.coordinator.aggregation.mean import means_of_stretches
from sparsyedge.coordinator.aggregation.pair_cosines import squares_of_stretches
from sparsyedge.coordinator.aggregation.round_entries import RoundEntries
from sparsyedge.coordinator.aggregation.rules import make_entry_rule
from sparsyedge.coordinator.aggregation_config import AggregationConfig
from sparsyedge.edge.cores import available_cores
from sparsyedge.edge.tensors import FloatArray

__all__ = ["Threads"]

Numbers = NDArray[np.float64]
Result = TypeVar("Result")

MOST_THREADS = 2
"""Each takes ten megabytes to compare 256 devices."""
MOST_PRODUCTS = 1 << 20
"""Where a part has more, one thread compares: each part that waits for its turn is a table of this size."""


class Threads:
    """As many threads as there are cores, up to two; they end with each answer."""

    def __init__(self, count: int | None = None) -> None:
        self._count = min(MOST_THREADS, available_cores()) if count is None else count

    def means(
        self, updates: RoundEntries, stretches: Sequence[tuple[int, int]], *, total: float, senders_only: bool
    ) -> Iterator[tuple[int, FloatArray]]:
        """The start and the mean of each stretch of the weights, in order."""
        mean = partial(means_of_stretches, updates, total=total, senders_only=senders_only)
        return self._each(mean, stretches)

    def combinations(
        self, updates: RoundEntries, stretches: Sequence[tuple[int, int]], config: AggregationConfig
    ) -> Iterator[tuple[int, FloatArray]]:
        """The start of each stretch of the weights and what a rule that looks at single entries makes of it.

        One after the other: each takes tens of megabytes.
        """
        return make_entry_rule(config).parts(updates, stretches)

    def comparisons(
        self, updates: RoundEntries, stretches: Sequence[tuple[int, int]], peers: Sequence[int]
    ) -> Iterator[tuple[Numbers, Numbers]]:
        """What each of these stretches adds to the products and to the squares of devices, in order."""
        if len(updates.members) * len(peers) > MOST_PRODUCTS:
            return compare_stretches(updates, stretches, peers)
        return self._each(partial(compare_stretches, updates, peers=peers), stretches)

    def squares_of_unit_sums(
        self, updates: RoundEntries, stretches: Sequence[tuple[int, int]], inverse: Numbers
    ) -> Iterator[Numbers]:
        """What each stretch adds to the squares of the sums of unit vectors, by weight, in order."""
        return self._each(partial(squares_of_stretches, updates, inverse=inverse), stretches)

    def _each(
        self, work: Callable[[Sequence[tuple[int, int]]], Iterable[Result]], stretches: Sequence[tuple[int, int]]
    ) -> Iterator[Result]:
        """What the work makes of each stretch, in order; no more answers wait for their turn than there are threads."""

        def of_one(stretch: tuple[int, int]) -> Result:
            (result,) = work([stretch])
            return result

        if self._count == 1:
            yield from map(of_one, stretches)
            return
        with ThreadPoolExecutor(self._count, thread_name_prefix="closing") as threads:
            pending: deque[Future[Result]] = deque()
            for stretch in stretches:
                if len(pending) == self._count:
                    yield pending.popleft().result()
                pending.append(threads.submit(of_one, stretch))
            while pending:
                yield pending.popleft().result()
