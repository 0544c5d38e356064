"""Makes text from other machines safe to store, log and send. No I/O."""

from __future__ import annotations

__all__ = ["MAX_TEXT", "one_line"]

MAX_TEXT = 300
"""The longest reason, or any other text from a device, in characters."""


def one_line(text: str, limit: int = MAX_TEXT) -> str:
    """The text as one printable line of at most `limit` characters; dots mark a cut.

    Cuts first: the text may be megabytes long, and we must not copy all of it.
    """
    start = text[: 4 * limit]
    line = "".join(each if each.isprintable() else "?" for each in " ".join(start.split()))
    return line if len(line) <= limit and len(start) == len(text) else f"{line[: limit - 3]}..."
