"""The power rails of a Raspberry Pi 5, measured by its power chip: `vcgencmd pmic_read_adc`.

     3V7_WL_SW_A current(0)=0.00097577A
     3V7_WL_SW_V volt(8)=3.69740500V
     EXT5V_V volt(24)=5.14876000V

Twelve rails report current and voltage; we add up their products. The 5 V input reports only voltage, so the sum leaves
out what USB devices and hats draw and what the converters lose: it covers the rails, not the board.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from sparsyedge.edge.phase_costs import Kind
from sparsyedge.hardware.meters.sampler import PowerSampler

__all__ = ["PmicMeter", "rail_watts"]

SAMPLE_PERIOD_S = 0.1
"""Every reading starts a process; at 100 Hz that alone would take up a good part of a core."""
ANSWER_LIMIT_S = 5.0
MODEL_FILE = Path("firmware/devicetree/base/model")
_LINE = re.compile(r"(\w+)_([AV]) (?:current|volt)\(\d+\)=(-?[0-9.]+)[AV]")


class PmicMeter(PowerSampler):
    """Joules of the Pi 5's rails: processor, memory, radio, 3.3 V and 1.8 V."""

    name: str = "pmic"
    kind: Kind = "measured-rails"
    priority: int = 20

    def __init__(self, command: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(lambda: rail_watts(_ask(command)), period_s=SAMPLE_PERIOD_S, clock=clock)

    @classmethod
    def probe(cls, root: Path) -> Self | None:
        """A meter if the board identifies as a Pi with this chip and `vcgencmd` answers, else None."""
        command = shutil.which("vcgencmd")
        try:
            model = (root / MODEL_FILE).read_text().strip("\0\n")
            if command is None or not re.search(r"Raspberry Pi (5|500|Compute Module 5)\b", model):
                return None
            rail_watts(_ask(command))
        except (OSError, ValueError):
            return None
        return cls(command)


def rail_watts(answer: str) -> float:
    """The sum over the rails with both current and voltage; raises ValueError if there are none."""
    numbers = {(rail, unit): float(number) for rail, unit, number in _LINE.findall(answer)}
    rails = [rail for rail, unit in numbers if unit == "A" and (rail, "V") in numbers]
    if not rails:
        raise ValueError(f"vcgencmd pmic_read_adc names no rail with current and voltage: {answer[:80]!r}")
    return sum(numbers[rail, "A"] * numbers[rail, "V"] for rail in rails)


def _ask(command: str) -> str:
    try:
        return subprocess.run(
            [command, "pmic_read_adc"], capture_output=True, text=True, timeout=ANSWER_LIMIT_S, check=True
        ).stdout
    except subprocess.SubprocessError as error:
        raise OSError(f"vcgencmd pmic_read_adc failed: {error}") from error
