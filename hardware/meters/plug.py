"""Shared by smart plugs: asks one over HTTP in the local network, and believes nothing that it has not checked."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from sparsyedge.edge.config import PlugConfig
from sparsyedge.edge.device.energy import MeterSettings
from sparsyedge.edge.phase_costs import Kind
from sparsyedge.edge.text import one_line
from sparsyedge.hardware.meters.local_http import fetch_table
from sparsyedge.hardware.meters.own_supply import require_own
from sparsyedge.hardware.meters.sampler import NoReading, PowerSampler

__all__ = ["PlugMeter", "number_of", "table_of"]

SAMPLE_PERIOD_S = 1.0
"""Plugs measure about once a second."""
PAUSE_S = 5.0
"""How long a plug that did not answer is left alone: a phase that begins or ends waits for the answer."""
_MORE_THAN_APPARENT = 1.2
_ROUNDING_W = 3.0
_MOST = 1e12


class PlugMeter(PowerSampler):
    """Joules that a board and its power supply draw from the mains."""

    kind: Kind = "measured-board"
    paths: ClassVar[tuple[str, ...]]
    """What to ask for, the newest way first; `{switch}` stands for the number of the switch."""

    def __init__(
        self, plug: PlugConfig, path: str, *, clock: Callable[[], float] = time.monotonic, pause_s: float = PAUSE_S
    ) -> None:
        """Asks for `path` alone."""
        super().__init__(self._ask, period_s=SAMPLE_PERIOD_S, clock=clock)
        self._plug, self._path = plug, path
        self._pause_s = pause_s
        self._asked_again_s = -math.inf
        self._silence: OSError | None = None
        self._last_total_wh = 0.0

    @classmethod
    def probe(cls, root: Path) -> Self | None:
        """None: nobody can know which plug feeds this board without `[meters.plug]`."""
        return None

    @classmethod
    def configured(cls, root: Path, settings: MeterSettings) -> Self | None:
        """A meter for the plug of `[meters.plug]`, or None if there is none of this make.

        Raises ConfigError if it feeds another device.
        """
        plug = settings.meters.plug
        if plug is None:
            return None
        require_own(f"the plug at {plug.address}", "meters.plug", plug.feeds, settings)
        for path in cls.paths:
            meter = cls(plug, path.format(switch=plug.switch))
            try:
                meter.watts_of(fetch_table(plug.address, meter._path))
            except NoReading:
                pass  # it answers as such a plug does, and may measure something later
            except (OSError, ValueError):
                continue
            return meter
        return None

    def watts_of(self, answer: Mapping[str, Any]) -> float:
        """The power in an answer; raises ValueError if it has none, NoReading if it is not the board's."""
        raise NotImplementedError

    def checked(
        self, watts: float, *, volts: float | None = None, amperes: float | None = None, total_wh: float | None = None
    ) -> float:
        """The watts, if they are what a plug that feeds a running board can say."""
        if watts > self._plug.most_w:
            raise ValueError(f"{watts:g} W is more than `most_w` = {self._plug.most_w:g}; is it in another unit?")
        if volts and amperes is not None and watts > _MORE_THAN_APPARENT * volts * amperes + _ROUNDING_W:
            raise ValueError(f"{watts:g} W is more than its {volts:g} V x {amperes:g} A; is it in another unit?")
        if total_wh is not None:
            before_wh, self._last_total_wh = self._last_total_wh, total_wh
            if total_wh < before_wh:
                raise ValueError(f"its total went back from {before_wh:g} to {total_wh:g} Wh; it was reset or replaced")
        if watts == 0:
            raise NoReading("it says 0 W, but this board is running: the plug feeds something else")
        return watts

    def _ask(self) -> float:
        now_s = time.monotonic()
        if self._silence is not None and now_s < self._asked_again_s:
            raise self._silence
        try:
            answer = fetch_table(self._plug.address, self._path)
        except OSError as error:
            self._silence, self._asked_again_s = error, time.monotonic() + self._pause_s
            raise
        self._silence = None
        return self.watts_of(answer)


def number_of(answer: Mapping[str, Any], name: str) -> float:
    """A number from 0 to 1e12; raises ValueError for anything else, also for `true` and for text."""
    value = answer.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"its answer has no number {name!r}: {one_line(repr(value), 60)}")
    # JSON has integers that no float can hold; a comparison with them is safe, and nan fails it.
    if not 0 <= value <= _MOST:
        raise ValueError(f"its {name!r} is {one_line(repr(value), 60)}; a number from 0 to {_MOST:g} is needed")
    return float(value)


def table_of(answer: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A table within an answer; raises ValueError if it is none."""
    value = answer.get(name)
    if not isinstance(value, dict):
        raise ValueError(f"its answer has no table {name!r}")
    return value
