from __future__ import annotations

import logging
import time

import pytest

from sparsyedge.hardware.meters.sampler import NoReading, PowerSampler


class Bench(PowerSampler):
    """A sampler whose sensor and clock a test moves by hand."""

    name = "bench"
    kind = "measured-board"

    def __init__(self, period_s: float = 0.005) -> None:
        self.now_s = 0.0
        self.watts: float | Exception = 1.0
        super().__init__(self.read, period_s=period_s, clock=lambda: self.now_s)

    def read(self) -> float:
        if isinstance(self.watts, Exception):
            raise self.watts
        return self.watts

    def after(self, seconds: float, watts: float | Exception) -> None:
        self.now_s += seconds
        self.watts = watts
        self.sample()


def test_power_becomes_energy_by_trapezoids() -> None:
    meter = Bench()
    meter.sample()
    meter.after(2.0, 3.0)
    meter.after(1.0, 3.0)
    assert meter.read_joules() == pytest.approx(4.0 + 3.0)


def test_time_without_a_reading_is_lost_and_not_made_up() -> None:
    meter = Bench()
    meter.sample()
    meter.after(1.0, 1.0)
    meter.after(4.0, OSError("gone"))
    meter.after(2.0, 1.0)
    meter.after(1.0, 1.0)
    assert meter.read_joules() == pytest.approx(2.0)
    assert meter.lost_s == pytest.approx(6.0)


def test_a_silent_sensor_is_logged_once_per_reason(caplog: pytest.LogCaptureFixture) -> None:
    meter = Bench()
    with caplog.at_level(logging.WARNING):
        for error in (OSError("gone"), OSError("gone"), NoReading("on a charger"), NoReading("on a charger")):
            meter.after(1.0, error)
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == ["gone", "on a charger"]


def test_the_rate_is_the_counted_one() -> None:
    meter = Bench()
    assert meter.sample_hz == 0.0
    for _ in range(101):
        meter.after(0.01, 1.0)
    assert meter.sample_hz == pytest.approx(101.0)


def test_the_thread_samples_by_itself_and_its_overhead_is_measured() -> None:
    meter = Bench(period_s=0.001)
    meter.start()
    deadline_s = time.monotonic() + 60
    while meter._samples < 20 and time.monotonic() < deadline_s:
        meter.now_s += 0.01
        time.sleep(0.001)
    meter.stop()
    assert meter._samples >= 20
    assert meter.read_joules() == pytest.approx(meter.now_s, rel=0.2)
    assert meter.overhead > 0
