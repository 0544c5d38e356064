from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import pytest

from sparsyedge.edge.config import HwmonConfig, MetersConfig
from sparsyedge.edge.device.energy import MeterSettings
from sparsyedge.edge.errors import ConfigError
from sparsyedge.hardware.meters.hwmon import HwmonMeter, choose_channels, find_channels


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


def chosen(*channels: str, whole_board: bool = False) -> MeterSettings:
    return MeterSettings("pi-03", MetersConfig(hwmon=HwmonConfig(channels=channels, whole_board=whole_board)))


def add_ina3221(root: Path) -> Path:
    """The files of the kernel's ina3221 driver, with a channel that is off."""
    voltages = {"in1_input": 5040, "in2_input": 3300, "in3_input": 0, "in4_input": 12, "in5_input": 3, "in6_input": 0}
    currents = {"curr1_input": 400, "curr2_input": 100, "curr4_input": 500}
    enabled = {"in1_enable": 1, "in2_enable": 1, "in3_enable": 0, "in7_input": 15, "shunt1_resistor": 10000}
    labels = {"in1_label": "5V", "in2_label": "3V3", "in3_label": "HAT"}
    chip = add_chip(root, 3, "ina3221", **voltages, **currents, **enabled, **labels)
    (chip / "curr3_input").write_text("")  # ENODATA on a real one
    return chip


def test_the_config_chooses_channels_by_label_or_by_number(tmp_path: Path) -> None:
    add_ina3221(tmp_path)
    for name, power_w in (("3V3", 0.33), ("ina3221:1", 2.016)):
        wanted = chosen(name).meters.hwmon
        assert sum(channel.watts() for channel in choose_channels(tmp_path, wanted)) == pytest.approx(power_w)


def test_chosen_channels_are_rails_unless_the_config_says_that_they_feed_the_whole_board(tmp_path: Path) -> None:
    add_ina3221(tmp_path)
    for whole_board, kind in ((False, "measured-rails"), (True, "measured-board")):
        meter = HwmonMeter.configured(tmp_path, chosen("5V", whole_board=whole_board))
        assert meter is not None
        assert meter.kind == kind


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        (("VDD_IN",), r"'VDD_IN': no such power sensor answers; here are ina3221:1 \(5V\), ina3221:2 \(3V3\)"),
        (("HAT",), r"'HAT': no such power sensor"),
        (("5V", "ina3221:1"), r"'ina3221:1' twice"),
    ],
)
def test_a_channel_that_is_missing_off_or_named_twice_is_refused(
    tmp_path: Path, names: tuple[str, ...], complaint: str
) -> None:
    add_ina3221(tmp_path)
    with pytest.raises(ConfigError, match=complaint):
        HwmonMeter.configured(tmp_path, chosen(*names))


def test_a_name_of_two_channels_is_refused(tmp_path: Path) -> None:
    for number in (0, 1):
        add_chip(tmp_path, number, "ina226", power1_input=1_000_000)
    with pytest.raises(ConfigError, match=r"'ina226:1': it is the name of several channels"):
        HwmonMeter.configured(tmp_path, chosen("ina226:1"))


@pytest.mark.parametrize("name", ["ina226", "ina228", "ina238"])
def test_one_channel_chips_are_read_in_microwatts_and_measure_the_board(tmp_path: Path, name: str) -> None:
    """in0 is the shunt's voltage and in1 the bus's in all three drivers."""
    files = {"in0_input": 5, "in1_input": 5050, "curr1_input": 500, "power1_input": 2_525_000, "shunt_resistor": 10000}
    add_chip(tmp_path, 0, name, **files)
    meter = HwmonMeter.probe(tmp_path)
    assert meter is not None
    assert meter.kind == "measured-board"
    assert watts(tmp_path) == pytest.approx(2.525)


@pytest.mark.parametrize("power", [2_525, 2_525_000_000])
def test_a_power_file_in_another_unit_than_the_kernels_is_left_out_with_both_figures(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, power: int
) -> None:
    add_chip(tmp_path, 0, "ina226", in1_input=5050, curr1_input=500, power1_input=power)
    assert HwmonMeter.probe(tmp_path) is None
    assert "voltage x current is 2.525 W; the driver's unit is wrong" in caplog.text
