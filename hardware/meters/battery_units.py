"""Converts a battery gauge's numbers to volts and amperes; units and signs differ between drivers and phones.

The kernel specifies microvolts and microamperes, Android microamperes, but many drivers and phones use other units. A
battery cell has 2 to 5 V and a device draws at least some milliamperes, so the size of a number tells its unit.
"""

from __future__ import annotations

__all__ = ["amperes", "volts"]

# No laptop or phone battery has 1000 V, so a number that large must be millivolts; likewise for microvolts.
_LEAST_MILLIVOLTS = 1000.0
_LEAST_MICROVOLTS = 1_000_000.0
# Milliamperes below, microamperes above: 20 A would melt a phone's connector, and an awake board draws over 20 mA.
_MOST_MILLIAMPERES = 20_000.0


def volts(number: float) -> float:
    """A gauge's voltage in volts."""
    if number >= _LEAST_MICROVOLTS:
        return number / 1e6
    return number / 1e3 if number >= _LEAST_MILLIVOLTS else number


def amperes(number: float) -> float:
    """A gauge's current in amperes, without sign: drivers disagree on whether discharge is positive or negative."""
    size = abs(number)
    return size / 1e3 if size < _MOST_MILLIAMPERES else size / 1e6
