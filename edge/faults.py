"""Crashes on purpose, so that tests can die in the middle of a write; nothing happens unless a variable asks for it.

`SPARSYEDGE_CRASH_AT=half-written:3` ends the process at once, as SIGKILL would, when it passes that point for the third
time.
"""

from __future__ import annotations

import os
from typing import Final

__all__ = ["CRASH_POINTS", "CRASH_VARIABLE", "EXIT_CODE", "crash_point"]

CRASH_VARIABLE: Final = "SPARSYEDGE_CRASH_AT"
EXIT_CODE: Final = 137
CRASH_POINTS: Final = ("half-written", "before-rename", "after-rename", "before-commit", "after-commit")
"""Inside a file's writing, before and after it gets its name, and on both sides of a transaction of the run's store."""

_passed = 0


def crash_point(name: str) -> None:
    """End the process here if the environment says so."""
    wanted = os.environ.get(CRASH_VARIABLE)
    if wanted is None:
        return
    point, _, count = wanted.partition(":")
    if point != name:
        return
    global _passed
    _passed += 1
    if str(_passed) == (count or "1"):
        os._exit(EXIT_CODE)
