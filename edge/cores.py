"""How many cores this process may use."""

from __future__ import annotations

import os

__all__ = ["MAX_THREADS", "available_cores"]

MAX_THREADS = 256
"""What a config may ask for."""


def available_cores() -> int:
    """The cores that the system lets this process use, as far as Python knows: 1 at least, MAX_THREADS at most."""
    if hasattr(os, "process_cpu_count"):  # Python 3.13, which heeds PYTHON_CPU_COUNT, too
        found = os.process_cpu_count()
    elif hasattr(os, "sched_getaffinity"):
        found = len(os.sched_getaffinity(0))
    else:
        found = os.cpu_count()
    return min(found or 1, MAX_THREADS)
