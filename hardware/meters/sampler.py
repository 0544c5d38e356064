"""Shared by meters that read power: a thread samples it and integrates energy with the trapezoidal rule."""

from __future__ import annotations

import logging
import math
import resource
import threading
import time
from collections.abc import Callable

from sparsyedge.edge.phase_costs import Kind
from sparsyedge.hardware.meters.stuck_watch import NoReading, StuckWatch

__all__ = ["NoReading", "PowerSampler"]

log = logging.getLogger(__name__)


class PowerSampler:
    """Integrates `read_watts`, called every `period_s` seconds from start to stop.

    `read_watts` raises OSError or ValueError if the sensor is gone, NoReading if the reading is not the device's power.
    That time counts as lost; we do not invent its energy.
    """

    name: str
    kind: Kind
    priority: int = 0
    sticks: bool = False
    """Whether a value that never changes, idle or busy, is a fault of this sensor."""

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
        self._last: tuple[float, float | None] | None = None  # time and watts of the last sample
        self._complaint = ""
        self._stuck = StuckWatch(clock) if self.sticks else None
        self._halt = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def sample_hz(self) -> float:
        """Measured readings per second so far."""
        return self._samples / self._counted_s if self._counted_s else 0.0

    @property
    def lost_s(self) -> float:
        """Seconds so far without a reading."""
        return self._lost_s

    @property
    def overhead(self) -> float:
        """The measured share of one core that sampling takes, including child processes."""
        return self._busy_s / self._counted_s if self._counted_s else 0.0

    def start(self) -> None:
        """Start the sampling thread."""
        if self._thread is None:
            self._halt.clear()
            self.sample()
            self._thread = threading.Thread(target=self._run, name=f"{self.name}-meter", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop the sampling thread and wait for it; nothing counts until the next start."""
        if self._thread is not None:
            self._halt.set()
            self._thread.join()
            self._thread = None
            self.sample()
            self._last = None

    def read_joules(self) -> float:
        """Joules up to now; while counting, takes an extra sample to measure short phases correctly."""
        if self._thread is not None:
            self.sample()
        return self._joules

    def sample(self) -> None:
        """Add the energy since the last sample, at the mean of both readings."""
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
            # A reverse current counts as zero, so energy never falls.
            watts = max(self._read_watts(), 0.0)
            if not math.isfinite(watts):
                raise ValueError(f"{watts} W is not a finite number")
            if self._stuck is not None:
                self._stuck.check(watts)
            return watts
        except (OSError, ValueError, NoReading) as error:
            complaint = type(error).__name__
            if complaint != self._complaint:
                log.warning("%s: no power reading, joules are missing from here on: %s", self.name, error)
                self._complaint = complaint
            return None

    def _run(self) -> None:
        # Absolute times, so a slow sensor does not lower the rate more than necessary.
        due_s = time.monotonic()
        while True:
            due_s = max(due_s + self._period_s, time.monotonic())
            if self._halt.wait(due_s - time.monotonic()):
                return
            self.sample()


def _busy_s() -> float:
    """CPU seconds of this thread and of finished child processes."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.thread_time() + children.ru_utime + children.ru_stime
