"""The USB meters over a real pseudo-terminal; the 130 bytes are made as their public descriptions say."""

from __future__ import annotations

import logging
import os
import select
import struct
import threading
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sparsyedge.edge.config import MetersConfig, UsbMeterConfig
from sparsyedge.edge.device.energy import MeterSettings, open_meter
from sparsyedge.edge.errors import ConfigError
from sparsyedge.hardware.meters.sampler import NoReading
from sparsyedge.hardware.meters.um25c import ANSWER_BYTES, ASK, Um25cMeter, answer_watts

UM24C, UM25C, UM34C = 0x0963, 0x09C9, 0x0D4C
SUMMED = "1 3 7 9 15 17 19 23 31 39 41 45 49 53 55 57 59 63 67 69 73 79 83 89 97 99 109 111 113 119 121 127"


def answer(model: int = UM25C, volts: float = 5.1, amperes: float = 0.8, watts: float = 4.08) -> bytes:
    """What a meter of that model says, with some energy counted in its second group."""
    fine = 10 if model == UM25C else 1
    head = struct.pack(
        ">HHHIHHH", model, round(volts * 100 * fine), round(amperes * 1000 * fine), round(watts * 1000), 27, 80, 1
    )
    groups = struct.pack(">II", 0, 0) + struct.pack(">II", 321, 1605) + bytes(64)
    rest = struct.pack(">HHHIIHIHHHIH", 271, 268, 7, 12, 60, 13, 300, 1, 2, 4, 63, 0)
    body = head + groups + rest
    assert len(body) == ANSWER_BYTES - 2
    if model != UM34C:
        return body + b"\xff\xf1"
    summed = 0
    for place in map(int, SUMMED.split()):
        summed ^= body[place]
    return body + bytes([0xFF, summed])


class SerialMeter:
    """The far end of a serial line: answers each question with `answer`."""

    def __init__(self) -> None:
        self.far, self._near = os.openpty()
        tty.setraw(self._near)
        self.port = Path(os.ttyname(self._near))
        self.answer = answer()
        self.questions = 0
        self._end, self._hang = os.pipe()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            ready, _, _ = select.select([self.far, self._end], [], [])
            if self._end in ready:
                return
            asked = os.read(self.far, 16)
            self.questions += asked.count(ASK)
            if ASK in asked:
                os.write(self.far, self.answer)

    def hang_up(self) -> None:
        """The meter is unplugged, and its port is gone."""
        if self._thread.is_alive():
            os.write(self._hang, b".")
            self._thread.join()
            for descriptor in (self.far, self._near, self._end, self._hang):
                os.close(descriptor)


@pytest.fixture
def line() -> Iterator[SerialMeter]:
    serial = SerialMeter()
    yield serial
    serial.hang_up()


def settings(port: Path, feeds: str = "pi-03") -> MeterSettings:
    return MeterSettings("pi-03", MetersConfig(usb=UsbMeterConfig(port=str(port), feeds=feeds)))


@pytest.mark.parametrize("model", [UM24C, UM25C, UM34C])
def test_each_model_is_read_in_its_own_units(model: int) -> None:
    assert answer_watts(answer(model)) == pytest.approx(4.08)


def test_a_meter_on_a_serial_line_measures_the_board(line: SerialMeter) -> None:
    meter = open_meter("um25c", settings=settings(line.port))
    try:
        assert (meter.name, meter.kind) == ("um25c", "measured-board")
        before = line.questions
        meter.read_joules()
        assert line.questions > before
        assert meter.lost_s == 0
    finally:
        meter.stop()


def test_the_meter_of_another_board_is_refused_and_not_asked(line: SerialMeter) -> None:
    with pytest.raises(ConfigError, match=r"`\[meters.usb\]`\) feeds pi-04, and this device is pi-03"):
        open_meter("um25c", settings=settings(line.port, feeds="pi-04"))
    assert line.questions == 0


def test_a_port_without_such_a_meter_is_refused_with_what_it_needs(line: SerialMeter, tmp_path: Path) -> None:
    line.answer = b"AT+OK\r\n"
    for port in (line.port, tmp_path / "ttyUSB9"):
        with pytest.raises(ConfigError, match=r"needs `\[meters.usb\]` with `port` and `feeds`"):
            open_meter("um25c", settings=settings(port))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (answer()[:-1], "129 bytes instead of 130"),
        (answer(0x1234), "model 0x1234 is not known"),
        (answer()[:-2] + b"\xff\xf2", "damaged"),
        (answer(UM34C)[:-1] + bytes([answer(UM34C)[-1] ^ 1]), "damaged"),
        (answer(watts=4080.0), "are not its 5.1 V x 0.8 A"),
        (answer(volts=65.0, watts=52.0), "are not its 65 V"),
    ],
)
def test_bytes_that_no_such_meter_says_are_refused(content: bytes, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        answer_watts(content)


def test_a_meter_without_load_feeds_something_else() -> None:
    with pytest.raises(NoReading, match="0 W, but this board is running"):
        answer_watts(answer(amperes=0.0, watts=0.0))


def test_an_answer_to_an_earlier_question_is_not_taken_for_this_one(line: SerialMeter) -> None:
    meter = Um25cMeter(line.port)
    assert meter._ask() == pytest.approx(4.08)
    os.write(line.far, answer(watts=9.0, amperes=1.7647))
    assert meter._ask() == pytest.approx(4.08)


def test_a_meter_that_is_unplugged_loses_time_is_named_once_and_counts_when_it_is_back(
    line: SerialMeter, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    port = tmp_path / "rfcomm0"
    port.symlink_to(line.port)
    now = [0.0]
    meter = Um25cMeter(port, clock=lambda: now[0], pause_s=0.0)
    meter.sample()
    now[0] = 2.0
    meter.sample()
    assert meter.read_joules() == pytest.approx(8.16)
    line.hang_up()
    port.unlink()
    with caplog.at_level(logging.WARNING):
        for now[0] in (3.0, 4.0):
            meter.sample()
    assert meter.read_joules() == pytest.approx(8.16)
    assert meter.lost_s == 2.0
    assert len(caplog.records) == 1
    with replugged(port):
        for now[0] in (5.0, 6.0):
            meter.sample()
    assert meter.read_joules() == pytest.approx(8.16 + 4.08)


@contextmanager
def replugged(port: Path) -> Iterator[None]:
    serial = SerialMeter()
    port.symlink_to(serial.port)
    try:
        yield
    finally:
        serial.hang_up()
