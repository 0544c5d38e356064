"""Notices a sensor that repeats one value for ever: a hung chip, or firmware that goes on showing its last reading."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["NoReading", "StuckWatch"]

STUCK_S = 300.0
"""How long a value must stay the same."""
SHARE_S = 60.0
"""How much of that time this process must have been idle, and how much of it busy; no board draws the same in both."""
IDLE_CORES, BUSY_CORES = 0.1, 0.5


class NoReading(Exception):
    """The sensor answers, but the reading is not the device's power; the message says why."""


class StuckWatch:
    """Compares readings with what this process does."""

    def __init__(self, clock: Callable[[], float], *, cpu_seconds: Callable[[], float] = time.process_time) -> None:
        self._clock, self._cpu_seconds = clock, cpu_seconds
        self._watts: float | None = None
        self._since_s = self._looked_s = clock()
        self._looked_cpu_s = cpu_seconds()
        self._idle_s = self._busy_s = 0.0

    def check(self, watts: float) -> None:
        """Raise NoReading while `watts` has been the same through idle and busy minutes."""
        now_s, cpu_s = self._clock(), self._cpu_seconds()
        if watts != self._watts:
            self._watts = watts
            self._forget(now_s, cpu_s)
            return
        elapsed_s = now_s - self._looked_s
        if elapsed_s >= 1.0:
            cores = (cpu_s - self._looked_cpu_s) / elapsed_s
            self._idle_s += elapsed_s if cores < IDLE_CORES else 0.0
            self._busy_s += elapsed_s if cores > BUSY_CORES else 0.0
            self._looked_s, self._looked_cpu_s = now_s, cpu_s
        if now_s - self._since_s >= STUCK_S and min(self._idle_s, self._busy_s) >= SHARE_S:
            raise NoReading(f"it has said {watts:g} W for {now_s - self._since_s:.0f} s, idle and busy; it is stuck")

    def _forget(self, now_s: float, cpu_s: float) -> None:
        self._since_s = self._looked_s = now_s
        self._looked_cpu_s = cpu_s
        self._idle_s = self._busy_s = 0.0
