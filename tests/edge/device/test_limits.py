from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparsyedge.edge.config import LimitsConfig
from sparsyedge.edge.device.limits import CHECK_S, PHONE_VARIABLE, Limits, Vitals, breach, read_vitals

FINE = Vitals(
    temperature_c=55.0,
    battery_percent=90.0,
    on_charger=False,
    free_memory_mb=900.0,
    free_disk_mb=9000.0,
    on_wifi=True,
)


def changed(**values: float | bool | None) -> Vitals:
    fields = {name: getattr(FINE, name) for name in FINE.__dataclass_fields__}
    return Vitals(**{**fields, **values})


def put(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{content}\n")


def test_a_device_that_is_well_may_train() -> None:
    assert breach(FINE, LimitsConfig()) is None


def test_what_a_board_cannot_tell_limits_nothing() -> None:
    assert breach(Vitals(), LimitsConfig(only_on_charger=True, wifi_only=True)) is None


@pytest.mark.parametrize(
    ("vitals", "reason"),
    [
        (changed(temperature_c=96.5), "temperature is 96.5 C, allowed are 95 C"),
        (changed(battery_percent=12.0), "battery is at 12 %, needed are 30 %"),
        (changed(free_memory_mb=20.0), "free memory is 20 MB, needed are 64 MB"),
        (changed(free_disk_mb=3.0), "free disk is 3 MB, needed are 200 MB"),
    ],
)
def test_each_limit_names_the_value_and_the_bound(vitals: Vitals, reason: str) -> None:
    assert breach(vitals, LimitsConfig()) == reason


def test_an_empty_battery_on_a_charger_is_no_reason() -> None:
    assert breach(changed(battery_percent=3.0, on_charger=True), LimitsConfig()) is None


def test_charger_and_wifi_are_asked_for_only_where_the_config_says_so() -> None:
    assert breach(FINE, LimitsConfig(only_on_charger=True)) == "not on a charger, and only_on_charger is set"
    config = LimitsConfig(wifi_only=True)
    assert breach(changed(on_wifi=False), config) == "not on Wi-Fi, and wifi_only is set"
    assert breach(changed(on_wifi=False), LimitsConfig()) is None


def test_a_hot_device_waits_until_it_has_cooled_well_below_the_limit() -> None:
    degrees, now_s = [82.0], [0.0]
    limits = Limits(
        LimitsConfig(max_temperature_c=80.0),
        vitals=lambda: changed(temperature_c=degrees[0]),
        clock=lambda: now_s[0],
    )
    found = []
    for degrees[0] in (82.0, 79.0, 76.0, 74.0, 79.0):
        found.append(limits.breach() is None)
        now_s[0] += CHECK_S
    assert found == [False, False, False, True, True]


def test_the_sensors_are_not_asked_between_two_steps() -> None:
    asked, now_s = [0], [0.0]

    def vitals() -> Vitals:
        asked[0] += 1
        return FINE

    limits = Limits(LimitsConfig(), vitals=vitals, clock=lambda: now_s[0])
    for _ in range(100):
        limits.breach()
        now_s[0] += CHECK_S / 50
    assert asked == [2]


def test_vitals_come_from_the_kernels_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    root = tmp_path / "sys"
    put(root / "class/thermal/thermal_zone0/temp", 48312)
    put(root / "class/thermal/thermal_zone1/temp", 61000)
    put(root / "class/thermal/thermal_zone2/temp", -274000)
    for name, content in {"type": "Battery", "capacity": 71, "status": "Discharging"}.items():
        put(root / "class/power_supply/BAT0" / name, content)
    put(root / "class/power_supply/mouse/type", "Battery")
    put(root / "class/power_supply/mouse/scope", "Device")
    put(root / "class/power_supply/mouse/capacity", 2)
    put(tmp_path / "proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable:    500000 kB")
    vitals = read_vitals(tmp_path / "not" / "yet", root=root, proc=tmp_path / "proc")
    assert vitals.temperature_c == 61.0
    assert (vitals.battery_percent, vitals.on_charger) == (71.0, False)
    assert vitals.free_memory_mb == 512.0
    assert vitals.free_disk_mb is not None
    assert vitals.on_wifi is None


def test_a_board_without_sensors_has_unknown_vitals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    vitals = read_vitals(tmp_path, root=tmp_path, proc=tmp_path)
    assert (vitals.temperature_c, vitals.battery_percent, vitals.on_charger) == (None, None, None)


def test_a_phone_that_does_not_tell_keeps_its_owners_limits() -> None:
    vitals = Vitals(is_phone=True)
    assert breach(vitals, LimitsConfig()) is None
    told = "the app Termux:API does not tell whether this phone is"
    assert breach(vitals, LimitsConfig(only_on_charger=True)) == f"{told} on a charger, and only_on_charger is set"
    assert breach(vitals, LimitsConfig(wifi_only=True)) == f"{told} on Wi-Fi, and wifi_only is set"


def test_a_phone_that_cannot_see_termux_is_no_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    config = LimitsConfig(only_on_charger=True)
    assert breach(read_vitals(tmp_path, root=tmp_path), config) is None
    monkeypatch.setenv(PHONE_VARIABLE, "yes")
    assert "does not tell whether this phone is on a charger" in str(
        breach(read_vitals(tmp_path, root=tmp_path), config)
    )


def answer(folder: Path, monkeypatch: pytest.MonkeyPatch, **answers: object) -> None:
    """A Termux:API of our own on the PATH; what it is not told does not answer."""
    for name in ("battery-status", "wifi-connectioninfo"):
        command = folder / f"termux-{name}"
        given = answers.get(name.split("-")[0])
        told = f"cat << 'END'\n{json.dumps(given)}\nEND" if given is not None else "exit 1"
        command.write_text(f"#!/bin/sh\n{told}\n")
        command.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


CHARGING = {"percentage": 64, "plugged": "PLUGGED_USB", "status": "CHARGING", "temperature": 39.5}


def test_a_phone_is_asked_through_termux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(tmp_path, monkeypatch, battery=CHARGING, wifi={"supplicant_state": "COMPLETED", "ssid": "lab"})
    vitals = read_vitals(tmp_path, root=tmp_path, proc=tmp_path)
    assert (vitals.temperature_c, vitals.battery_percent) == (39.5, 64.0)
    assert (vitals.on_charger, vitals.on_wifi, vitals.is_phone) == (True, True, True)


def test_a_phone_is_as_warm_as_its_battery_and_not_as_its_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "class/thermal/thermal_zone0/temp", 68000)
    answer(tmp_path, monkeypatch, battery=CHARGING)
    assert read_vitals(tmp_path, root=tmp_path, proc=tmp_path).temperature_c == 39.5
    # What Termux:API prints where Android has no temperature.
    answer(tmp_path, monkeypatch, battery={**CHARGING, "temperature": -214748364.8})
    assert read_vitals(tmp_path, root=tmp_path, proc=tmp_path).temperature_c == 68.0


@pytest.mark.parametrize(
    ("battery", "on_charger"),
    [
        ({"plugged": "PLUGGED_AC", "status": "FULL", "percentage": 100}, True),
        ({"plugged": "PLUGGED_WIRELESS", "status": "NOT_CHARGING", "percentage": 80}, True),
        ({"plugged": "UNPLUGGED", "status": "DISCHARGING", "percentage": 80}, False),
        # An empty battery's percentage is left out.
        ({"plugged": "UNPLUGGED", "status": "DISCHARGING"}, False),
        ({"plugged": "PLUGGED_-1", "status": "UNKNOWN", "percentage": None, "current": None}, False),
        ({"API_ERROR": "whatever it is"}, False),
        (None, None),
    ],
)
def test_a_phone_is_on_a_charger_only_if_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, battery: object, on_charger: bool | None
) -> None:
    answer(tmp_path, monkeypatch, battery=battery)
    vitals = read_vitals(tmp_path, root=tmp_path, proc=tmp_path)
    assert vitals.on_charger is on_charger
    assert (breach(vitals, LimitsConfig(only_on_charger=True)) is None) is (on_charger is True)


@pytest.mark.parametrize(
    ("wifi", "on_wifi"),
    [
        ({"ip": "fe80::1", "supplicant_state": "COMPLETED", "ssid": "<unknown ssid>"}, True),
        ({"ip": "10.115.4.9", "supplicant_state": "DISCONNECTED", "rssi": -127}, False),
        ({"ip": "10.115.4.9", "supplicant_state": "UNINITIALIZED"}, False),
        ({"API_ERROR": "No current connection"}, False),
        (None, None),
    ],
)
def test_a_phone_on_mobile_data_is_not_on_wifi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wifi: object, on_wifi: bool | None
) -> None:
    answer(tmp_path, monkeypatch, battery=CHARGING, wifi=wifi)
    assert read_vitals(tmp_path, root=tmp_path, proc=tmp_path).on_wifi is on_wifi
