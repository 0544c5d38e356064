"""Shared by meters that read power: a thread that samples it and integrates energy by trapezoids."""

from __future__ import annotations

import logging
import resource
import threading
import time
from collections.abc import Callable

from sparsyedge.edge.phase_costs import Kind

__all__ = ["NoReading", "PowerSampler"]

log = logging.getLogger(__name__)


class NoReading(Exception):
    """The sensor answers, but not with what the device draws; the message says why."""


class PowerSampler:
    """Integrates `read_watts`, asked every `period_s` seconds from start to stop.

    `read_watts` raises OSError or ValueError if the sensor is gone, NoReading if the reading is not the device's power.
    That time counts as lost; we do not invent its energy.
    """

    name: str
    kind: Kind
    priority: int = 0

    def __init__(
        self, read_watts: Callable[[], float], *, period_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read_watts = read_watts
        self._period_s = period_s
        self._clock = clock
        self._lock = threading.Lock()
        self._joules = self._lost_s = 0.0
        self._counted_s = self._busy_s = 0.0
        self._samples = 0
        self._last: tuple[float, float | None] | None = None  # seconds and watts of the last sample, None without any
        self._complaint = ""
        self._halt = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def sample_hz(self) -> float:
        """Readings per second so far, as counted."""
        return self._samples / self._counted_s if self._counted_s else 0.0

    @property
    def lost_s(self) -> float:
        """Seconds so far without a reading."""
        return self._lost_s

    @property
    def overhead(self) -> float:
        """The share of one core that sampling takes, as measured; what a child process takes is in it."""
        return self._busy_s / self._counted_s if self._counted_s else 0.0

    def start(self) -> None:
        """Start the sampling thread."""
        if self._thread is None:
            self._halt.clear()
            self.sample()
            self._thread = threading.Thread(target=self._run, name=f"{self.name}-meter", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the sampling thread and wait for it; the time until the next start is not counted."""
        if self._thread is not None:
            self._halt.set()
            self._thread.join()
            self._thread = None
            self.sample()
            self._last = None

    def read_joules(self) -> float:
        """Joules up to this moment; while counting, takes a sample of its own so that short phases come out right."""
        if self._thread is not None:
            self.sample()
        return self._joules

    def sample(self) -> None:
        """Add the energy since the last sample, half of it by this reading and half by the one before."""
        with self._lock:
            busy_s = _busy_s()
            watts = self._reading()
            now_s = self._clock()
            self._busy_s += _busy_s() - busy_s
            self._samples += 1
            if self._last is not None:
                last_s, last_watts = self._last
                self._counted_s += now_s - last_s
                if watts is None or last_watts is None:
                    self._lost_s += now_s - last_s
                else:
                    self._joules += (now_s - last_s) * (watts + last_watts) / 2
            self._last = now_s, watts

    def _reading(self) -> float | None:
        try:
            # A current that flows backwards counts as none, so that energy never falls.
            return max(self._read_watts(), 0.0)
        except (OSError, ValueError, NoReading) as error:
            complaint = type(error).__name__
            if complaint != self._complaint:
                log.warning("%s: no power reading, joules are missing from here on: %s", self.name, error)
                self._complaint = complaint
            return None

    def _run(self) -> None:
        # Absolute times: a slow sensor must not make the rate drift further than it has to.
        due_s = time.monotonic()
        while True:
            due_s = max(due_s + self._period_s, time.monotonic())
            if self._halt.wait(due_s - time.monotonic()):
                return
            self.sample()


def _busy_s() -> float:
    """Processor seconds of this thread and of the processes that have been started and have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.thread_time() + children.ru_utime + children.ru_stime
