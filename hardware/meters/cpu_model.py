"""An estimate for devices without a sensor, from this process's CPU time.

Without a calibration it is CPU time times the watts of one busy core: it ignores idle power, radio and memory, and uses
one figure for all clock frequencies. Good for comparing runs on the same device; its kind is `modelled`.

With the calibration of `sparsyedge bench meter` it is what this very board drew with as many cores busy, idle power
included; its kind is `calibrated`. Neither is a measurement.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from sparsyedge.edge.device.energy import MeterSettings
from sparsyedge.edge.phase_costs import Kind
from sparsyedge.hardware.meters.calibration import Calibration, PowerCurve, read_calibration

__all__ = ["CpuModelMeter"]

log = logging.getLogger(__name__)

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
        self,
        core_watts: float = DEFAULT_CORE_WATTS,
        *,
        calibration: Calibration | None = None,
        cpu_seconds: Callable[[], float] = time.process_time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """With a calibration, `core_watts` does not count."""
        self._core_watts = core_watts
        self._curve = None if calibration is None else PowerCurve(calibration)
        self._cpu_seconds, self._clock = cpu_seconds, clock
        self._joules = 0.0
        self._last: tuple[float, float] | None = None  # wall and CPU seconds, while counting
        if calibration is not None:
            self.kind = "calibrated"
            self.name = f"cpu-model from {calibration.meter}"

    @classmethod
    def probe(cls, root: Path) -> Self | None:
        """Always returns a meter: every process has a CPU clock."""
        return cls()

    @classmethod
    def configured(cls, root: Path, settings: MeterSettings) -> Self | None:
        """A meter with the calibration of the device's config, if that names one; raises ConfigError if it is bad."""
        path = settings.meters.calibration
        if path is None:
            return cls()
        calibration = read_calibration(Path(path), root=root)
        log.info(
            "cpu-model is calibrated by %s (%s) on %s; loads of the same processor time differ by up to %.0f %%",
            calibration.meter,
            calibration.kind,
            calibration.made_at,
            100 * calibration.spread,
        )
        return cls(calibration=calibration)

    def start(self) -> None:
        """Count processor time from here on."""
        if self._last is None:
            self._last = self._clock(), self._cpu_seconds()

    def stop(self) -> None:
        """Count processor time up to here."""
        self.read_joules()
        self._last = None

    def read_joules(self) -> float:
        """Modelled joules between start and stop so far."""
        if self._last is not None:
            (before_s, before_cpu_s), (now_s, now_cpu_s) = self._last, (self._clock(), self._cpu_seconds())
            self._last = now_s, now_cpu_s
            self._joules += self._spent(now_s - before_s, now_cpu_s - before_cpu_s)
        return self._joules

    def _spent(self, seconds: float, cpu_s: float) -> float:
        """Joules of a stretch, as if the cores had been equally busy all through it."""
        if self._curve is None:
            return cpu_s * self._core_watts
        return seconds * self._curve.watts(cpu_s / seconds) if seconds > 0 else 0.0
