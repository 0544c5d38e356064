"""The temperature, energy and pace of a training that goes on for minutes, looked at once a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from sparsyedge.edge.device.energy import EnergyMeter
from sparsyedge.edge.device.limits import read_vitals

__all__ = ["SoakLog", "SoakSample"]

LOOK_S = 1.0
"""Seconds between two looks, at first."""
MOST_SAMPLES = 1200
"""When there are more, every second one goes and looks become half as frequent: a day's log stays small."""


class SoakSample(msgspec.Struct, frozen=True, array_like=True):
    """What one look found."""

    at_s: float
    """Since the first step."""
    steps: int
    """So far."""
    celsius: float | None
    joules: float | None
    """As the meter counts them."""


class SoakLog:
    """Looks at thermometer and meter, at most once in a while."""

    def __init__(self, meter: EnergyMeter, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._meter, self._clock = meter, clock
        self._begun_s: float | None = None
        self._every_s = LOOK_S
        self.samples: list[SoakSample] = []

    @property
    def celsius(self) -> list[float]:
        """All temperatures found, in order."""
        return [sample.celsius for sample in self.samples if sample.celsius is not None]

    def look(self, steps: int, *, last: bool = False) -> None:
        """Note what is found now, unless the look before was a moment ago and this is not the last."""
        now_s = self._clock()
        self._begun_s = now_s if self._begun_s is None else self._begun_s
        at_s = now_s - self._begun_s
        if self.samples and not last and at_s - self.samples[-1].at_s < self._every_s:
            return
        joules = None if self._meter.kind == "none" else self._meter.read_joules()
        self.samples.append(SoakSample(at_s, steps, read_vitals(Path.cwd()).temperature_c, joules))
        if len(self.samples) > MOST_SAMPLES:
            self.samples = self.samples[::2]
            self._every_s *= 2
