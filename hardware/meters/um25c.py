"""The USB power meters UM24C, UM25C and UM34C, over their serial port (Bluetooth SPP, bound to /dev/rfcomm0).

One byte, 0xF0, asks; 130 bytes answer, numbers with the high byte first:

    0    2   model: 0x0963 UM24C, 0x09C9 UM25C, 0x0D4C UM34C
    2    2   voltage: 10 mV; 1 mV on the UM25C
    4    2   current: 1 mA; 0.1 mA on the UM25C
    6    4   power: mW
    16   80  ten groups of 4 + 4: mAh, mWh
    128  2   0xFFF1; on the UM34C the last byte is the exclusive or of some others

The meter measures about twice a second.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
import struct
import termios
import time
import tty
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sparsyedge.edge.device.energy import MeterSettings
from sparsyedge.edge.phase_costs import Kind
from sparsyedge.hardware.meters.own_supply import require_own
from sparsyedge.hardware.meters.sampler import NoReading, PowerSampler

__all__ = ["ANSWER_BYTES", "ASK", "Model", "Um25cMeter", "answer_watts"]

ASK = b"\xf0"
ANSWER_BYTES = 130
ANSWER_LIMIT_S = 1.0
SAMPLE_PERIOD_S = 0.5
PAUSE_S = 5.0
"""How long a meter that did not answer is left alone: a phase that begins or ends waits for the answer."""
_END = b"\xff\xf1"
_UM34C_SUMMED = (
    *(1, 3, 7, 9, 15, 17, 19, 23, 31, 39, 41, 45, 49, 53, 55, 57),
    *(59, 63, 67, 69, 73, 79, 83, 89, 97, 99, 109, 111, 113, 119, 121, 127),
)
_HIGHEST_V = 40.0
_DIFFERENCE = 0.1
_ROUNDING_W = 0.2
"""Power and voltage x current come from readings some milliseconds apart."""


@dataclass(frozen=True)
class Model:
    """What the numbers of one model mean."""

    name: str
    volts: float
    amperes: float


_MODELS = {
    0x0963: Model("UM24C", 0.01, 0.001),
    0x09C9: Model("UM25C", 0.001, 0.0001),
    0x0D4C: Model("UM34C", 0.01, 0.001),
}


class Um25cMeter(PowerSampler):
    """Joules of a board whose supply runs through one of these meters."""

    name: str = "um25c"
    kind: Kind = "measured-board"
    priority: int = 8
    sticks: bool = True
    needs: str = "it needs `[meters.usb]` with `port` and `feeds`, and a UM24C, UM25C or UM34C that answers there"

    def __init__(self, port: Path, *, clock: Callable[[], float] = time.monotonic, pause_s: float = PAUSE_S) -> None:
        super().__init__(self._ask, period_s=SAMPLE_PERIOD_S, clock=clock)
        self._line = _Line(port)
        self._pause_s = pause_s
        self._ask_again_s = -math.inf

    @classmethod
    def probe(cls, root: Path) -> Self | None:
        """None: nobody can know which port leads to the meter that feeds this board without `[meters.usb]`."""
        return None

    @classmethod
    def configured(cls, root: Path, settings: MeterSettings) -> Self | None:
        """A meter for the port of `[meters.usb]`, or None if no such meter answers there.

        Raises ConfigError if it feeds another device.
        """
        usb = settings.meters.usb
        if usb is None:
            return None
        require_own(f"the USB meter at {usb.port}", "meters.usb", usb.feeds, settings)
        meter = cls(Path(usb.port))
        try:
            meter._ask()
        except NoReading:
            return meter
        except (OSError, ValueError):
            return None
        return meter

    def _ask(self) -> float:
        if time.monotonic() < self._ask_again_s:
            raise OSError(errno.ETIMEDOUT, "it did not answer a moment ago")
        try:
            return answer_watts(self._line.ask())
        except OSError:
            self._ask_again_s = time.monotonic() + self._pause_s
            raise


def answer_watts(answer: bytes) -> float:
    """The power in an answer; raises ValueError if it cannot be one, NoReading if it is not this board's."""
    if len(answer) != ANSWER_BYTES:
        raise ValueError(f"it answered with {len(answer)} bytes instead of {ANSWER_BYTES}")
    number, millivolts, current, milliwatts = struct.unpack_from(">HHHI", answer)
    model = _MODELS.get(number)
    if model is None:
        raise ValueError(f"model 0x{number:04x} is not known; UM24C, UM25C and UM34C are")
    if not _is_whole(model, answer):
        raise ValueError("its answer is damaged: the last bytes do not fit the others")
    volts, amperes = float(millivolts * model.volts), float(current * model.amperes)
    watts = float(milliwatts / 1000)
    if volts > _HIGHEST_V or abs(watts - volts * amperes) > _DIFFERENCE * watts + _ROUNDING_W:
        raise ValueError(
            f"its {watts:g} W are not its {volts:g} V x {amperes:g} A; the {model.name} has another firmware or unit"
        )
    if watts == 0:
        raise NoReading("it says 0 W, but this board is running: the meter feeds something else")
    return watts


def _is_whole(model: Model, answer: bytes) -> bool:
    if model.name != "UM34C":
        return answer.endswith(_END)
    summed = 0
    for place in _UM34C_SUMMED:
        summed ^= answer[place]
    return summed == answer[-1]


class _Line:
    """A serial port that is opened when it is needed, and again after it was gone."""

    def __init__(self, port: Path) -> None:
        self._port = port
        self._descriptors: list[int] = []
        weakref.finalize(self, _close, self._descriptors)

    def ask(self) -> bytes:
        """The answer to one question; raises OSError if none arrives in time."""
        try:
            if not self._descriptors:
                self._descriptors.append(_open(self._port))
            line = self._descriptors[0]
            # A late answer to the question before would be taken for this one's.
            termios.tcflush(line, termios.TCIFLUSH)
            os.write(line, ASK)
            return _read(line)
        except (OSError, termios.error) as error:
            _close(self._descriptors)
            raise OSError(errno.EIO, f"{self._port}: {error}") from error


def _open(port: Path) -> int:
    line = os.open(port, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        tty.setraw(line)
        settings = termios.tcgetattr(line)
        settings[4] = settings[5] = termios.B9600
        termios.tcsetattr(line, termios.TCSANOW, settings)
    except BaseException:
        os.close(line)
        raise
    return line


def _read(line: int) -> bytes:
    answer = b""
    deadline_s = time.monotonic() + ANSWER_LIMIT_S
    while len(answer) < ANSWER_BYTES:
        ready, _, _ = select.select([line], [], [], max(deadline_s - time.monotonic(), 0))
        if not ready:
            raise TimeoutError(f"{len(answer)} of {ANSWER_BYTES} bytes in {ANSWER_LIMIT_S:g} s")
        piece = os.read(line, ANSWER_BYTES - len(answer))
        if not piece:
            raise OSError(errno.EIO, "the line is gone")
        answer += piece
    return answer


def _close(descriptors: list[int]) -> None:
    while descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptors.pop())
