from __future__ import annotations

import time
from pathlib import Path

import pytest

from sparsyedge.hardware.meters.cpu_model import DEFAULT_CORE_WATTS, CpuModelMeter


class CpuTime:
    def __init__(self) -> None:
        self.seconds = 12.0

    def __call__(self) -> float:
        return self.seconds


def test_joules_are_processor_seconds_times_watts_and_marked_as_modelled() -> None:
    cpu = CpuTime()
    meter = CpuModelMeter(2.5, cpu_seconds=cpu)
    meter.start()
    cpu.seconds += 4
    assert meter.read_joules() == 10.0
    assert (meter.name, meter.kind) == ("cpu-model", "modelled")


def test_processor_time_outside_start_and_stop_is_not_counted() -> None:
    cpu = CpuTime()
    meter = CpuModelMeter(1.0, cpu_seconds=cpu)
    cpu.seconds += 100
    for _ in range(2):
        meter.start()
        meter.start()
        cpu.seconds += 3
        meter.stop()
        meter.stop()
        cpu.seconds += 100
    assert meter.read_joules() == 6.0


def test_every_device_has_this_meter(tmp_path: Path) -> None:
    assert CpuModelMeter.probe(tmp_path) is not None


def test_real_work_costs_about_what_the_model_says() -> None:
    meter = CpuModelMeter()
    meter.start()
    started_s = time.process_time()
    while time.process_time() - started_s < 0.05:
        pass
    assert meter.read_joules() == pytest.approx(0.05 * DEFAULT_CORE_WATTS, rel=0.5)
