"""Plugs of both makes over HTTP; answers have the form that their makers document, and come from a server here."""

from __future__ import annotations

import copy
import logging
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fixtures.plugs import FakePlug, running_plug

from sparsyedge.edge.config import MetersConfig, PlugConfig
from sparsyedge.edge.device.energy import MeterSettings, open_meter
from sparsyedge.edge.errors import ConfigError
from sparsyedge.hardware.meters.plug import PlugMeter
from sparsyedge.hardware.meters.shelly import ShellyMeter
from sparsyedge.hardware.meters.tasmota import TasmotaMeter

SWITCH, PM1 = "/rpc/Switch.GetStatus?id=0", "/rpc/PM1.GetStatus?id=0"
METER, STATUS = "/meter/0", "/cm?cmnd=Status%208"
GEN2: dict[str, Any] = {
    "id": 0,
    "source": "init",
    "output": True,
    "apower": 4.2,
    "voltage": 230.1,
    "current": 0.034,
    "aenergy": {"total": 1234.567, "by_minute": [70.1, 69.9, 70.3], "minute_ts": 1700000000},
    "temperature": {"tC": 41.2, "tF": 106.1},
}
GEN1: dict[str, Any] = {
    "power": 4.2,
    "overpower": 0.0,
    "is_valid": True,
    "timestamp": 1700000000,
    "counters": [4.1, 4.2, 4.2],
    "total": 74074,
}
TASMOTA: dict[str, Any] = {
    "StatusSNS": {
        "Time": "2024-01-01T12:00:00",
        "ENERGY": {
            "TotalStartTime": "2023-10-21T22:15:00",
            "Total": 3.705,
            "Yesterday": 0.028,
            "Today": 0.026,
            "Power": 4.2,
            "ApparentPower": 7,
            "ReactivePower": 5,
            "Factor": 0.6,
            "Voltage": 233,
            "Current": 0.03,
        },
    }
}
MAKES: list[tuple[type[PlugMeter], str, dict[str, Any]]] = [
    (ShellyMeter, SWITCH, GEN2),
    (ShellyMeter, PM1, GEN2),
    (ShellyMeter, METER, GEN1),
    (TasmotaMeter, STATUS, TASMOTA),
]


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def plug() -> Iterator[FakePlug]:
    with running_plug() as running:
        yield running


def settings(plug: FakePlug, *, device: str = "pi-03", feeds: str = "pi-03") -> MeterSettings:
    return MeterSettings(device, MetersConfig(plug=PlugConfig(address=plug.address, feeds=feeds)))


def meter_at(plug: FakePlug, make: type[PlugMeter], path: str, clock: Clock | None = None) -> PlugMeter:
    config = PlugConfig(address=plug.address, feeds="pi-03")
    return make(config, path, clock=clock or time.monotonic, pause_s=0.0)


@pytest.mark.parametrize(("make", "path", "answer"), MAKES)
def test_a_plug_measures_the_board_that_it_feeds(
    plug: FakePlug, make: type[PlugMeter], path: str, answer: dict[str, Any]
) -> None:
    plug.answers[path] = answer
    meter = open_meter(make.name, settings=settings(plug))
    meter.stop()
    assert (meter.name, meter.kind) == (make.name, "measured-board")
    assert isinstance(meter, make)
    assert meter._ask() == pytest.approx(4.2)


def test_power_of_a_plug_becomes_energy(plug: FakePlug) -> None:
    plug.answers[SWITCH] = GEN2
    clock = Clock()
    meter = meter_at(plug, ShellyMeter, SWITCH, clock)
    for clock.now_s in (0.0, 5.0, 10.0):
        meter.sample()
    assert meter.read_joules() == pytest.approx(42.0)


def test_auto_takes_a_plug_only_where_the_config_names_it(plug: FakePlug) -> None:
    plug.answers[STATUS] = TASMOTA
    assert open_meter().name != "tasmota"
    meter = open_meter(settings=settings(plug))
    meter.stop()
    assert meter.name == "tasmota"


def test_a_plug_that_feeds_another_board_is_refused_and_not_asked(plug: FakePlug) -> None:
    plug.answers[SWITCH] = GEN2
    with pytest.raises(
        ConfigError, match=r"feeds pi-04, and this device is pi-03: its joules would be another board's"
    ):
        open_meter("shelly", settings=settings(plug, feeds="pi-04"))
    assert plug.asked == []


def test_auto_leaves_the_plug_of_another_board_out_with_a_warning(
    plug: FakePlug, caplog: pytest.LogCaptureFixture
) -> None:
    plug.answers[SWITCH] = GEN2
    assert open_meter(settings=settings(plug, feeds="pi-04")).name not in ("shelly", "tasmota")
    assert "feeds pi-04, and this device is pi-03" in caplog.text


def test_a_named_plug_without_its_table_says_what_it_needs(plug: FakePlug) -> None:
    for where in (MeterSettings("pi-03"), settings(plug)):
        with pytest.raises(ConfigError, match=r"'tasmota' finds no sensor .* needs `\[meters.plug\]` with `address`"):
            open_meter("tasmota", settings=where)


def changed(answer: dict[str, Any], *path: str, value: Any) -> dict[str, Any]:
    result = copy.deepcopy(answer)
    table = result
    for step in path[:-1]:
        table = table[step]
    table[path[-1]] = value
    return result


SENSOR = ("StatusSNS", "ENERGY")


@pytest.mark.parametrize(
    ("make", "path", "answer", "complaint"),
    [
        (ShellyMeter, SWITCH, changed(GEN2, "apower", value=-3.0), "a number from 0 to 1e"),
        (ShellyMeter, SWITCH, changed(GEN2, "apower", value="4.2"), "has no number 'apower': '4.2'"),
        (ShellyMeter, SWITCH, changed(GEN2, "apower", value=True), "has no number 'apower': True"),
        (ShellyMeter, SWITCH, changed(GEN2, "apower", value=float("nan")), "a number from 0 to 1e"),
        (ShellyMeter, SWITCH, changed(GEN2, "aenergy", value=5), "no table 'aenergy'"),
        (ShellyMeter, SWITCH, changed(GEN2, "apower", value=4200.0), "more than `most_w` = 200; is it in another unit"),
        (ShellyMeter, SWITCH, changed(GEN2, "current", value=0.001), "more than its 230.1 V x 0.001 A"),
        (ShellyMeter, METER, changed(GEN1, "is_valid", value=False), "itself says that its reading is not valid"),
        (ShellyMeter, METER, changed(GEN1, "power", value=0.0), "0 W, but this board is running"),
        (TasmotaMeter, STATUS, changed(TASMOTA, *SENSOR, "Power", value=10**400), "a number from 0 to 1e"),
        (TasmotaMeter, STATUS, changed(TASMOTA, *SENSOR, "Power", value=[4, 5]), "has no number 'Power'"),
        (TasmotaMeter, STATUS, changed(TASMOTA, "StatusSNS", value={}), "no table 'ENERGY'"),
        (TasmotaMeter, STATUS, {"WARNING": "Need user=<username>&password=<password>"}, "no table 'StatusSNS'"),
    ],
)
def test_an_answer_that_cannot_be_this_boards_power_is_lost_time_with_a_reason(
    plug: FakePlug,
    caplog: pytest.LogCaptureFixture,
    make: type[PlugMeter],
    path: str,
    answer: dict[str, Any],
    complaint: str,
) -> None:
    plug.answers[path] = answer
    clock = Clock()
    meter = meter_at(plug, make, path, clock)
    with caplog.at_level(logging.WARNING):
        for clock.now_s in (0.0, 5.0):
            meter.sample()
    assert (meter.read_joules(), meter.lost_s) == (0.0, 5.0)
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage().startswith(make.name)
    assert re.search(complaint, caplog.text)


@pytest.mark.parametrize(
    "content",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000,
        b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 16_000,
        b"HTTP/1.1 200 OK\r\n\r\n[1, 2]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{",
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\xff" * 200,
        b"",
    ],
)
def test_no_answer_of_a_stranger_stops_the_meter_or_fills_its_memory(plug: FakePlug, content: bytes) -> None:
    plug.answers[SWITCH] = content
    clock = Clock()
    meter = meter_at(plug, ShellyMeter, SWITCH, clock)
    for clock.now_s in (0.0, 5.0):
        meter.sample()
    assert (meter.read_joules(), meter.lost_s) == (0.0, 5.0)


def test_an_answer_byte_by_byte_is_given_up(plug: FakePlug, caplog: pytest.LogCaptureFixture) -> None:
    plug.answers[SWITCH] = GEN2
    plug.drip_s = 0.1  # a minute for the whole answer
    meter_at(plug, ShellyMeter, SWITCH).sample()
    assert "takes longer than 2 s to answer" in caplog.text or "timed out" in caplog.text


def test_a_total_that_goes_back_loses_one_reading_and_is_named(
    plug: FakePlug, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    meter = meter_at(plug, TasmotaMeter, STATUS, clock)
    for clock.now_s, total in ((0.0, 3.7), (1.0, 0.1), (2.0, 0.1), (3.0, 0.1)):
        plug.answers[STATUS] = changed(TASMOTA, *SENSOR, "Total", value=total)
        meter.sample()
    assert "went back from 3700 to 100 Wh; it was reset or replaced" in caplog.text
    assert meter.lost_s == 2.0
    assert meter.read_joules() == pytest.approx(4.2)


def test_a_plug_that_vanishes_is_left_alone_for_a_while_and_then_asked_again(plug: FakePlug) -> None:
    config = PlugConfig(address=plug.address, feeds="pi-03")
    meter = ShellyMeter(config, SWITCH, pause_s=3600.0)
    plug.answers[SWITCH] = b"nonsense\r\n\r\n"
    for _ in range(5):
        meter.sample()
    assert len(plug.asked) == 1
    meter._asked_again_s = 0.0
    plug.answers[SWITCH] = GEN2
    meter.sample()
    assert meter._ask() == pytest.approx(4.2)


@pytest.mark.parametrize("make_answer", [lambda body: b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)])
def test_an_answer_in_chunks_is_understood(plug: FakePlug, make_answer: Callable[[bytes], bytes]) -> None:
    body = b'{"apower": 4.2, "aenergy": {"total": 1.0}}'
    plug.answers[SWITCH] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + make_answer(body)
    assert meter_at(plug, ShellyMeter, SWITCH)._ask() == pytest.approx(4.2)
