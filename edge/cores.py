"""How many cores this process may use."""

from __future__ import annotations

import os

__all__ = ["MAX_THREADS", "available_cores"]

MAX_THREADS = 256
"""The most threads a config may ask for."""


def available_cores() -> int:
    """The number of cores this process may use, from 1 to MAX_THREADS."""
    if hasattr(os, "process_cpu_count"):  # Python 3.13; also honours PYTHON_CPU_COUNT
        found = os.process_cpu_count()
    elif hasattr(os, "sched_getaffinity"):
        found = len(os.sched_getaffinity(0))
    else:
        found = os.cpu_count()
    return min(found or 1, MAX_THREADS)
