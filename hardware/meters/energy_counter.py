"""Shared by meters that read counters of joules: adds up what they advance, and loses what it cannot know."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from sparsyedge.edge.phase_costs import Kind

__all__ = ["CounterMeter"]

log = logging.getLogger(__name__)

MOST_W = 2000.0
"""More than one counter's domain can draw; a counter that advances faster has been set anew, or its unit is wrong."""


class CounterMeter:
    """Joules of several counters; one that vanishes, falls or leaps costs the joules of that stretch."""

    name: str
    kind: Kind
    priority: int = 0
    sample_hz: float = 0.0

    def __init__(self, counters: Sequence[Callable[[], float]], *, clock: Callable[[], float] = time.monotonic) -> None:
        """Each of `counters` gives its joules since some moment, or raises OSError or ValueError."""
        self._counters = counters
        self._clock = clock
        self._joules = 0.0
        self._last: tuple[float, list[float] | None] | None = None  # time and joules, while counting
        self._complaint: list[str] = []
        self.lost_s = 0.0

    @classmethod
    def probe(cls, root: Path) -> Self | None:
        """A meter for the counters under `root`, or None if there is none that can be read."""
        raise NotImplementedError

    def start(self) -> None:
        """Count from here on."""
        if self._last is None:
            self._last = self._reading()

    def stop(self) -> None:
        """Count up to here."""
        self.read_joules()
        self._last = None

    def read_joules(self) -> float:
        """Joules counted so far between start and stop."""
        if self._last is not None:
            (before_s, before), (now_s, now) = self._last, self._reading()
            spent = None if before is None or now is None else self._spent(before, now, now_s - before_s)
            if spent is None:
                self.lost_s += now_s - before_s
            else:
                self._joules += spent
            self._last = now_s, now
        return self._joules

    def _spent(self, before: list[float], now: list[float], seconds: float) -> float | None:
        """Joules between two readings; None if a counter fell or leapt."""
        most_j = MOST_W * max(seconds, 1.0)
        for first, second in zip(before, now, strict=True):
            if not 0 <= second - first <= most_j:
                self._complain(f"a counter went from {first:.6g} to {second:.6g} J in {seconds:.3g} s")
                return None
        return sum(now) - sum(before)

    def _reading(self) -> tuple[float, list[float] | None]:
        try:
            joules = [counter() for counter in self._counters]
            if not all(map(math.isfinite, joules)):
                raise ValueError(f"{joules} J is not a finite number")
        except (OSError, ValueError) as error:
            self._complain(str(error))
            return self._clock(), None
        return self._clock(), joules

    def _complain(self, complaint: str) -> None:
        # Numbers differ each time; one warning per kind of trouble is enough.
        kind = complaint.split(" ", 3)[:3]
        if kind != self._complaint:
            log.warning("%s: joules are missing from here on: %s", self.name, complaint)
            self._complaint = kind
