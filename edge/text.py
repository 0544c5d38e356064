"""Text that came from another machine, or quotes one, made fit to be stored, logged and sent. No I/O."""

from __future__ import annotations

__all__ = ["MAX_TEXT", "one_line"]

MAX_TEXT = 300
"""Characters of a reason, or of anything that a device says of itself."""


def one_line(text: str, limit: int = MAX_TEXT) -> str:
    """The text as one printable line of at most `limit` characters; what does not fit is cut off with dots.

    Cut first: the text may be megabytes long, and nothing may be built from all of it.
    """
    start = text[: 4 * limit]
    line = "".join(each if each.isprintable() else "?" for each in " ".join(start.split()))
    return line if len(line) <= limit and len(start) == len(text) else f"{line[: limit - 3]}..."
