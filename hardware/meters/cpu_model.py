"""An estimate for devices without a sensor: this process's CPU time times the watts of one busy core.

It ignores idle power, radio and memory, and uses one figure for all clock frequencies. Good for comparing runs on the
same device; not a measurement, and its kind says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from sparsyedge.edge.phase_costs import Kind

__all__ = ["CpuModelMeter"]

# Between a small ARM core at full clock (1 to 2 W) and a laptop core (5 to 10 W).
DEFAULT_CORE_WATTS = 4.0


class CpuModelMeter:
    """Modelled joules of this process and all its threads, from user and system time."""

    name: str = "cpu-model"
    kind: Kind = "modelled"
    priority: int = 0
    sample_hz: float = 0.0
    lost_s: float = 0.0

    def __init__(
        self, core_watts: float = DEFAULT_CORE_WATTS, *, cpu_seconds: Callable[[], float] = time.process_time
    ) -> None:
        self._core_watts = core_watts
        self._cpu_seconds = cpu_seconds
        self._counted_s = 0.0
        self._started_s: float | None = None

    @classmethod
    def probe(cls, root: Path) -> Self | None:
        """Always returns a meter: every process has a CPU clock."""
        return cls()

    def start(self) -> None:
        """Count processor time from here on."""
        if self._started_s is None:
            self._started_s = self._cpu_seconds()

    def stop(self) -> None:
        """Count processor time up to here."""
        if self._started_s is not None:
            self._counted_s += self._cpu_seconds() - self._started_s
            self._started_s = None

    def read_joules(self) -> float:
        """Modelled joules between start and stop so far."""
        running_s = 0.0 if self._started_s is None else self._cpu_seconds() - self._started_s
        return (self._counted_s + running_s) * self._core_watts
