"""Volts and amperes out of a battery gauge's numbers, whose units and signs differ between drivers and phones.

The kernel says microvolts and microamperes, Android microamperes, and both are often wrong. A battery cell has between
2 and 5 V and a device draws at least some milliamperes, so the size of a number tells its unit.
"""

from __future__ import annotations

__all__ = ["amperes", "volts"]

# No pack of a laptop or a phone has 1000 V or more, so above that it must be millivolts, and so on.
_LEAST_MILLIVOLTS = 1000.0
_LEAST_MICROVOLTS = 1_000_000.0
# 20 A would melt a phone's connector and 20 mA is less than a waking board draws.
_MOST_MILLIAMPERES = 20_000.0


def volts(number: float) -> float:
    """A gauge's voltage in volts."""
    if number >= _LEAST_MICROVOLTS:
        return number / 1e6
    return number / 1e3 if number >= _LEAST_MILLIVOLTS else number


def amperes(number: float) -> float:
    """A gauge's current in amperes, as a magnitude: whether discharge is positive or negative, each driver decides."""
    size = abs(number)
    return size / 1e3 if size < _MOST_MILLIAMPERES else size / 1e6
