from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import pytest

from sparsyedge.hardware.meters.hwmon import HwmonMeter, find_channels


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def add_chip(root: Path, number: int, name: str, **files: object) -> Path:
    folder = root / "class" / "hwmon" / f"hwmon{number}"
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{name}\n")
    for file, content in files.items():
        (folder / file).write_text(f"{content}\n")
    return folder


def watts(root: Path) -> float:
    return sum(channel.watts() for channel in find_channels(root))


def test_a_power_file_is_read_in_microwatts_and_its_factors_are_left_alone(tmp_path: Path) -> None:
    add_chip(tmp_path, 0, "ina219", power1_input=2_500_000, in1_input=5000, curr1_input=500)
    assert watts(tmp_path) == pytest.approx(2.5)


def test_voltage_times_current_serves_where_there_is_no_power_file(tmp_path: Path) -> None:
    add_chip(tmp_path, 0, "ina3221", in1_input=5000, curr1_input=400, in2_input=3300, curr2_input=100)
    assert watts(tmp_path) == pytest.approx(2.0 + 0.33)


def test_the_shunt_voltages_and_the_sum_of_an_ina3221_are_no_rail(tmp_path: Path) -> None:
    add_chip(tmp_path, 0, "ina3221", in1_input=5000, curr1_input=400, in4_input=40, curr4_input=400)
    assert watts(tmp_path) == pytest.approx(2.0)


def test_the_input_of_the_board_is_not_added_to_the_rails_behind_it(tmp_path: Path) -> None:
    rails = {"in1_label": "VDD_IN", "in1_input": 5000, "curr1_input": 2000}
    rails |= {"in2_label": "VDD_CPU_GPU_CV", "in2_input": 5000, "curr2_input": 900}
    add_chip(tmp_path, 0, "ina3221", **rails)
    assert watts(tmp_path) == pytest.approx(10.0)


def test_sensors_of_other_things_than_the_board_are_left_out(tmp_path: Path) -> None:
    add_chip(tmp_path, 0, "amdgpu", power1_input=30_000_000)
    add_chip(tmp_path, 1, "BAT0", power1_input=9_000_000)
    add_chip(tmp_path, 2, "coretemp", temp1_input=50_000)
    assert HwmonMeter.probe(tmp_path) is None


def test_a_channel_that_does_not_answer_is_left_out(tmp_path: Path) -> None:
    add_chip(tmp_path, 0, "ina3221", in1_input=5000, curr1_input=400, in2_input="", curr2_input="")
    assert watts(tmp_path) == pytest.approx(2.0)


def test_a_device_without_hwmon_has_no_such_meter(tmp_path: Path) -> None:
    assert HwmonMeter.probe(tmp_path) is None


def test_power_is_integrated_by_trapezoids(tmp_path: Path) -> None:
    chip = add_chip(tmp_path, 0, "ina219", power1_input=1_000_000)
    clock = Clock()
    meter = HwmonMeter(find_channels(tmp_path), clock=clock)
    meter.sample()
    clock.now_s = 2.0
    (chip / "power1_input").write_text("3000000")
    meter.sample()
    assert meter.read_joules() == pytest.approx(4.0)


def test_current_that_flows_backwards_does_not_lower_the_total(tmp_path: Path) -> None:
    add_chip(tmp_path, 0, "ina3221", in1_input=5000, curr1_input=-400)
    assert watts(tmp_path) == 0.0


def test_a_started_meter_counts_by_itself_and_stops_cleanly(tmp_path: Path) -> None:
    add_chip(tmp_path, 0, "ina219", power1_input=10_000_000)
    meter = HwmonMeter.probe(tmp_path)
    assert meter is not None
    before = threading.active_count()
    started = time.monotonic()
    meter.start()
    meter.start()
    assert threading.active_count() == before + 1
    time.sleep(0.1)
    meter.stop()
    elapsed_s = time.monotonic() - started
    assert threading.active_count() == before
    joules = meter.read_joules()
    assert 10 * 0.1 <= joules <= 10 * elapsed_s
    time.sleep(0.02)
    assert meter.read_joules() == joules


def test_a_meter_started_again_does_not_count_the_pause(tmp_path: Path) -> None:
    add_chip(tmp_path, 0, "ina219", power1_input=10_000_000)
    clock = Clock()
    meter = HwmonMeter(find_channels(tmp_path), clock=clock)
    for _ in range(2):
        meter.start()
        clock.now_s += 1.0
        meter.stop()
        clock.now_s += 100.0
    assert meter.read_joules() == pytest.approx(20.0)


def test_a_sensor_that_vanishes_keeps_the_total_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chip = add_chip(tmp_path, 0, "ina219", power1_input=1_000_000)
    clock = Clock()
    meter = HwmonMeter(find_channels(tmp_path), clock=clock)
    meter.sample()
    clock.now_s = 5.0
    meter.sample()
    (chip / "power1_input").unlink()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            clock.now_s += 1.0
            meter.sample()
    assert meter.read_joules() == pytest.approx(5.0)
    assert len(caplog.records) == 1


def test_a_sensor_that_comes_back_counts_from_then_on(tmp_path: Path) -> None:
    chip = add_chip(tmp_path, 0, "ina219", power1_input=1_000_000)
    clock = Clock()
    meter = HwmonMeter(find_channels(tmp_path), clock=clock)
    (chip / "power1_input").unlink()
    meter.sample()
    (chip / "power1_input").write_text("2000000")
    for clock.now_s in (10.0, 11.0):
        meter.sample()
    assert meter.read_joules() == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("chip", "files", "kind"),
    [
        ("ina219", {"power1_input": 1}, "measured-board"),
        ("ina3221", {"in1_label": "VDD_IN", "in1_input": 1, "curr1_input": 1}, "measured-board"),
        ("ina3221", {"in1_input": 1, "curr1_input": 1}, "measured-rails"),
        ("some-regulator", {"power1_input": 1}, "measured-rails"),
    ],
)
def test_joules_of_the_supply_line_are_told_from_those_of_rails(
    tmp_path: Path, chip: str, files: dict[str, object], kind: str
) -> None:
    add_chip(tmp_path, 0, chip, **files)
    meter = HwmonMeter.probe(tmp_path)
    assert meter is not None
    assert meter.kind == kind


def test_two_supply_sensors_are_rails_since_nobody_says_which_is_the_input(tmp_path: Path) -> None:
    add_chip(tmp_path, 0, "ina219", power1_input=1_000_000)
    add_chip(tmp_path, 1, "ina219", power1_input=2_000_000)
    meter = HwmonMeter.probe(tmp_path)
    assert meter is not None
    assert meter.kind == "measured-rails"
