"""Counts refusals by a fixed set of kinds and logs them at a limited rate.

A hostile member can provoke any number of reasons, but no new kinds. So rounds, devices and kinds bound the disk space
it can take, and it gets a few log lines a minute.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from sparsyedge.coordinator.record.observer import Observer
from sparsyedge.coordinator.record.store import Store
from sparsyedge.coordinator.rounds.events import RefusalKind
from sparsyedge.edge.text import one_line

__all__ = ["Refusals"]

log = logging.getLogger(__name__)

TOLD_PER_MINUTE = 5
"""Refusals of one device that we report one by one."""
MINUTE_S = 60.0


@dataclass
class _Told:
    """How many refusals of one device we reported in this minute, and how many we left out."""

    since_s: float
    lines: int = 0
    left_out: int = 0


class Refusals:
    """Counts refusals, writes the counts now and then, and reports a few of them to the observer."""

    def __init__(
        self, store: Store, observer: Observer, *, present_round: Callable[[], int], clock: Callable[[], float]
    ) -> None:
        """`present_round` returns the last announced round, 0 before the first."""
        self._store = store
        self._observer = observer
        self._present_round = present_round
        self._clock = clock
        self._counts: dict[tuple[int, str, str], tuple[int, str]] = {}
        self._told: dict[str, _Told] = {}

    def count(self, device: str, kind: RefusalKind, reason: str, *, round_number: int | None = None) -> None:
        """Count one refusal; `reason` says what was wrong.

        It counts for the round the device named, or for the current one if the named round is still to come.
        """
        present = self._present_round()
        round_number = present if round_number is None else min(round_number, present)
        reason = one_line(reason)
        before, _ = self._counts.get((round_number, device, kind), (0, ""))
        self._counts[round_number, device, kind] = (before + 1, reason)
        told = self._told.setdefault(device, _Told(self._clock()))
        if told.lines >= TOLD_PER_MINUTE:
            told.left_out += 1
            return
        told.lines += 1
        self._observer.refused(round_number=round_number, device=device, reason=reason)

    def flush(self) -> None:
        """Write the counts, once a second at most: a device that sends rubbish must not wear out the disk."""
        if self._counts:
            self._store.count_refusals(self._counts)
            self._counts.clear()
        now_s = self._clock()
        for device, told in list(self._told.items()):
            if now_s - told.since_s >= MINUTE_S:
                del self._told[device]
                if told.left_out:
                    log.warning("refused %d more messages of device %s in the last minute", told.left_out, device)
