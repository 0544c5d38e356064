"""Makes text from other machines safe to store, log and send, and reads durations that people write. No I/O."""

from __future__ import annotations

import re

__all__ = ["MAX_TEXT", "duration", "duration_s", "duration_text", "one_line"]

MAX_TEXT = 300
"""The longest reason, or any other text from a device, in characters."""
UNITS = ((1, 120, "s"), (60, 99 * 60, "min"), (3600, 48 * 3600, "h"), (86_400, float("inf"), "d"))


def duration(seconds: float) -> str:
    """A length of time for people to read, in the unit that suits it: `6 min`."""
    return next(f"{seconds / unit:.0f} {name}" for unit, limit, name in UNITS if seconds < limit)


def one_line(text: str, limit: int = MAX_TEXT) -> str:
    """The text as one printable line of at most `limit` characters; dots mark a cut.

    Cuts first: the text may be megabytes long, and we must not copy all of it.
    """
    start = text[: 4 * limit]
    line = "".join(each if each.isprintable() else "?" for each in " ".join(start.split()))
    return line if len(line) <= limit and len(start) == len(text) else f"{line[: limit - 3]}..."


_UNITS_S = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def duration_s(text: str) -> float | None:
    """The seconds of a duration such as 90m, 12h, 30d or 2w; None if it is not one."""
    found = re.fullmatch(r"(\d{1,6})([mhdw])", text)
    return int(found[1]) * _UNITS_S[found[2]] if found else None


def duration_text(seconds: float) -> str:
    """A duration for people, in the largest unit that leaves a whole number."""
    for unit, name in (("d", "day"), ("h", "hour"), ("m", "minute")):
        number, rest = divmod(seconds, _UNITS_S[unit])
        if number and not rest:
            return f"{number:.0f} {name}{'s' if number > 1 else ''}"
    return f"{seconds:.0f} seconds"
