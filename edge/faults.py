"""Deliberate crashes: tests use them to die in the middle of a write. Off unless an environment variable is set.

`SPARSYEDGE_CRASH_AT=half-written:3` ends the process at once, like SIGKILL, when it passes that point for the third
time.
"""

from __future__ import annotations

import os
from typing import Final

__all__ = [
    "CRASH_POINTS",
    "CRASH_VARIABLE",
    "EXIT_CODE",
    "ROLLOUT_CRASH_POINTS",
    "SWAP_POINTS",
    "UPGRADE_CRASH_POINTS",
    "crash_point",
]

CRASH_VARIABLE: Final = "SPARSYEDGE_CRASH_AT"
EXIT_CODE: Final = 137
CRASH_POINTS: Final = (
    "half-written",
    "before-rename",
    "after-rename",
    "before-sync",
    "before-commit",
    "after-commit",
)
"""In the middle of writing a file, before and after its rename, before the updates of a round are synced, and on both
sides of a commit to the run store."""
SWAP_POINTS: Final = ("before-swap", "after-swap")
"""On both sides of the moment in which a device's new model takes the old one's place."""
UPGRADE_CRASH_POINTS: Final = (
    "chunk-kept",
    "downloaded",
    "installed",
    "checked",
    "before-switch",
    "after-switch",
    "before-keep",
)
"""The stages of an upgrade on a device."""
ROLLOUT_CRASH_POINTS: Final = ("rollout-written", "orders-given")
"""Before and after a coordinator sends the orders that follow from the state on its disk."""

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
