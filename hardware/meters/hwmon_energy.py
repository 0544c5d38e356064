"""Energy from sensor chips that count it themselves: INA228, INA700, INA780 and SQ52206 under hwmon.

    class/hwmon/hwmon0/name                           ina228
    class/hwmon/hwmon0/energy1_input                  microjoules, counts up

No thread, and nothing is missed between two readings. The kernel's ina238 driver has the file since it knows these
chips; `hwmon` samples the power of the same chips where it has not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Self

from sparsyedge.edge.phase_costs import Kind
from sparsyedge.hardware.meters.energy_counter import CounterMeter

__all__ = ["HwmonEnergyMeter"]

log = logging.getLogger(__name__)

_CHIPS = ("ina228", "ina700", "ina780", "sq52206", "SQ52206")


class HwmonEnergyMeter(CounterMeter):
    """Joules of the board, if one such chip sits in its supply line; with several, of the rails that they measure."""

    name: str = "hwmon-energy"
    kind: Kind = "measured-rails"
    priority: int = 12
    needs: str = "it needs an INA228, INA700, INA780 or SQ52206 whose driver has energy1_input"

    def __init__(self, files: list[Path], *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__([partial(_joules, file) for file in files], clock=clock)
        self.kind = "measured-board" if len(files) == 1 else "measured-rails"

    @classmethod
    def probe(cls, root: Path) -> Self | None:
        """A meter for all chips under `root` that count energy, or None if none answers."""
        files = [file for file in sorted((root / "class" / "hwmon").glob("hwmon*/energy1_input")) if _answers(file)]
        return cls(files) if files else None


def _answers(file: Path) -> bool:
    try:
        if (file.parent / "name").read_text().strip() not in _CHIPS:
            return False
        _joules(file)
    except (OSError, ValueError) as error:
        log.warning("energy counter %s is left out: %s", file, error)
        return False
    return True


def _joules(file: Path) -> float:
    return int(file.read_text()) / 1e6
