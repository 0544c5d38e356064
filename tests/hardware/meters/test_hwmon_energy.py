from __future__ import annotations

import logging
from pathlib import Path

import pytest

from sparsyedge.hardware.meters.hwmon_energy import HwmonEnergyMeter


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def add_chip(root: Path, number: int, name: str, microjoules: int) -> Path:
    folder = root / "class" / "hwmon" / f"hwmon{number}"
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "energy1_input").write_text(f"{microjoules}\n")
    return folder / "energy1_input"


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_the_chip_counts_by_itself_and_only_between_start_and_stop(tmp_path: Path, clock: Clock) -> None:
    counter = add_chip(tmp_path, 0, "ina228", 7_000_000)
    meter = HwmonEnergyMeter([counter], clock=clock)
    meter.start()
    clock.now_s, _ = 10.0, counter.write_text("32000000")
    meter.stop()
    counter.write_text("99000000")
    assert meter.read_joules() == pytest.approx(25.0)
    assert (meter.kind, meter.lost_s) == ("measured-board", 0.0)


def test_several_chips_count_as_rails(tmp_path: Path) -> None:
    add_chip(tmp_path, 0, "ina228", 1)
    add_chip(tmp_path, 1, "ina780", 1)
    meter = HwmonEnergyMeter.probe(tmp_path)
    assert meter is not None
    assert meter.kind == "measured-rails"


def test_the_energy_of_other_chips_and_damaged_files_are_no_meter(tmp_path: Path) -> None:
    add_chip(tmp_path, 0, "amd_energy", 5)
    add_chip(tmp_path, 1, "ina228", 5).write_text("n/a")
    assert HwmonEnergyMeter.probe(tmp_path) is None


@pytest.mark.parametrize("later", ["1000000", "9000000000000", "gone"])
def test_a_counter_that_falls_leaps_or_vanishes_loses_that_stretch_and_no_other(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture, later: str
) -> None:
    counter = add_chip(tmp_path, 0, "ina228", 5_000_000)
    meter = HwmonEnergyMeter([counter], clock=clock)
    meter.start()
    clock.now_s, _ = 1.0, counter.write_text("6000000")
    assert meter.read_joules() == pytest.approx(1.0)
    clock.now_s, _ = 4.0, counter.write_text(later)
    with caplog.at_level(logging.WARNING):
        assert meter.read_joules() == pytest.approx(1.0)
    assert meter.lost_s == pytest.approx(3.0)
    assert len(caplog.records) == 1
    counter.write_text("50000000")
    meter.read_joules()
    lost_s = meter.lost_s
    clock.now_s, _ = 6.0, counter.write_text("52000000")
    joules = meter.read_joules()
    clock.now_s, _ = 8.0, counter.write_text("54000000")
    assert meter.read_joules() == pytest.approx(joules + 2.0)
    assert meter.lost_s == lost_s
