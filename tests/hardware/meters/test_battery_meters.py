from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparsyedge.hardware.meters.battery_units import amperes, volts
from sparsyedge.hardware.meters.power_supply import PowerSupplyMeter
from sparsyedge.hardware.meters.termux import TermuxMeter


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def add_supply(root: Path, name: str, **files: object) -> Path:
    folder = root / "class" / "power_supply" / name
    folder.mkdir(parents=True)
    for file, content in files.items():
        (folder / file).write_text(f"{content}\n")
    return folder


def joules_of_ten_seconds(folder: Path) -> tuple[float, float]:
    clock = Clock()
    meter = PowerSupplyMeter([folder], clock=clock)
    meter.sample()
    clock.now_s = 10.0
    meter.sample()
    return meter.read_joules(), meter.lost_s


def phone(folder: Path, monkeypatch: pytest.MonkeyPatch, **status: object) -> Path:
    """A Termux:API of our own on the PATH."""
    command = folder / "termux-battery-status"
    answer = {"percentage": 80, "plugged": "UNPLUGGED", "status": "DISCHARGING", "temperature": 31.0, **status}
    command.write_text(f"#!/bin/sh\ncat << 'END'\n{json.dumps(answer)}\nEND\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return command


@pytest.mark.parametrize(
    ("number", "expected"), [(3_850_000, 3.85), (3850, 3.85), (3.85, 3.85), (12_600_000, 12.6), (12.6, 12.6)]
)
def test_voltages_come_in_micro_milli_and_whole_volts(number: float, expected: float) -> None:
    assert volts(number) == pytest.approx(expected)


@pytest.mark.parametrize(("number", "expected"), [(820_000, 0.82), (-820_000, 0.82), (-576, 0.576), (576, 0.576)])
def test_currents_come_in_either_sign_and_in_milli_or_microamperes(number: float, expected: float) -> None:
    assert amperes(number) == pytest.approx(expected)


@pytest.mark.parametrize(
    "files",
    [
        {"power_now": 3_000_000},
        {"power_now": -3_000_000},
        {"voltage_now": 4_000_000, "current_now": 750_000},
        {"voltage_now": 4_000_000, "current_now": -750_000},
        {"voltage_now": 4000, "current_now": -750},
    ],
)
def test_a_gauge_is_read_whatever_its_units_and_sign(tmp_path: Path, files: dict[str, int]) -> None:
    folder = add_supply(tmp_path, "BAT0", type="Battery", status="Discharging", **files)
    meter = PowerSupplyMeter.probe(tmp_path)
    assert meter is not None
    assert (meter.name, meter.kind) == ("power-supply", "battery")
    joules, lost_s = joules_of_ten_seconds(folder)
    assert joules == pytest.approx(30.0)
    assert lost_s == 0.0


@pytest.mark.parametrize("status", ["Charging", "Full", "Not charging"])
def test_nothing_is_counted_on_a_charger(tmp_path: Path, status: str) -> None:
    folder = add_supply(tmp_path, "BAT0", type="Battery", status=status, power_now=3_000_000)
    assert joules_of_ten_seconds(folder) == (0.0, 10.0)


def test_a_battery_that_is_pulled_out_loses_time_and_not_the_total(tmp_path: Path) -> None:
    folder = add_supply(tmp_path, "BAT0", type="Battery", status="Discharging", power_now=1_000_000)
    clock = Clock()
    meter = PowerSupplyMeter([folder], clock=clock)
    meter.sample()
    clock.now_s = 5.0
    meter.sample()
    (folder / "power_now").unlink()
    clock.now_s = 8.0
    meter.sample()
    assert meter.read_joules() == pytest.approx(5.0)
    assert meter.lost_s == pytest.approx(3.0)


def test_chargers_mice_and_gauges_without_a_current_are_no_meter(tmp_path: Path) -> None:
    add_supply(tmp_path, "AC", type="Mains", online=1)
    add_supply(tmp_path, "hid-mouse", type="Battery", scope="Device", power_now=1)
    add_supply(tmp_path, "BAT1", type="Battery", capacity=50)
    assert PowerSupplyMeter.probe(tmp_path) is None


@pytest.mark.parametrize(
    ("current", "watts"),
    # Termux:API takes a milliampere gauge's numbers up to 999 times 1000, and passes on the larger ones as they are.
    [(-820_000, 3.28), (820_000, 3.28), (-820, 3.28), (820, 3.28), (-1500, 6.0), (1500, 6.0), (-1_500_000, 6.0)],
)
def test_a_phone_is_read_through_termux(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, current: int, watts: float
) -> None:
    phone(tmp_path, monkeypatch, voltage=4000, current=current)
    meter = TermuxMeter.probe(tmp_path)
    assert meter is not None
    assert (meter.name, meter.kind) == ("termux", "battery")
    assert meter._read_watts() == pytest.approx(watts)


@pytest.mark.parametrize("numbers", [{"voltage": -1000, "current": -820_000}, {"voltage": 4000, "current": 0}])
def test_what_termux_passes_on_for_a_missing_number_is_no_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbers: dict[str, int]
) -> None:
    command = phone(tmp_path, monkeypatch, **numbers)
    assert TermuxMeter.probe(tmp_path) is None
    clock = Clock()
    meter = TermuxMeter(str(command), clock=clock)
    meter.sample()
    clock.now_s = 5.0
    meter.sample()
    assert (meter.read_joules(), meter.lost_s) == (0.0, 5.0)


def test_a_phone_that_does_not_answer_is_left_alone_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tmp_path / "asked"
    command = phone(tmp_path, monkeypatch)
    command.write_text(f"#!/bin/sh\necho >> {asked}\nexit 1\n")
    clock = Clock()
    meter = TermuxMeter(str(command), clock=clock)
    for clock.now_s in (0.0, 5.0, 10.0, 55.0):
        meter.sample()
    assert len(asked.read_text().splitlines()) == 1
    clock.now_s = 65.0
    meter.sample()
    assert len(asked.read_text().splitlines()) == 2
    assert meter.lost_s == 65.0


def test_a_phone_on_a_charger_counts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = phone(tmp_path, monkeypatch, plugged="PLUGGED_AC", status="FULL", voltage=4000, current=-820_000)
    clock = Clock()
    meter = TermuxMeter(str(command), clock=clock)
    meter.sample()
    clock.now_s = 5.0
    meter.sample()
    assert (meter.read_joules(), meter.lost_s) == (0.0, 5.0)


def test_a_phone_whose_gauge_has_no_current_is_no_meter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    phone(tmp_path, monkeypatch)
    assert TermuxMeter.probe(tmp_path) is None


@pytest.mark.parametrize("script", ["exit 1", "echo 'not JSON'", "echo '{}'"])
def test_a_termux_without_its_app_is_no_meter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    phone(tmp_path, monkeypatch).write_text(f"#!/bin/sh\n{script}\n")
    assert TermuxMeter.probe(tmp_path) is None


def test_a_machine_that_is_no_phone_has_no_such_meter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert TermuxMeter.probe(tmp_path) is None
