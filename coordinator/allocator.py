"""Tunes the C library's allocator for a process that now and then handles whole models."""

from __future__ import annotations

import ctypes
import logging
import sys
from functools import cache

__all__ = ["give_back_free_memory", "give_back_large_blocks"]

log = logging.getLogger(__name__)

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8
LARGE_BYTES = 3 << 20
"""Larger than what an update takes while it is checked: clearing fresh pages for each would take half of the time."""
KEPT_BYTES = 16 << 20
"""Free memory to keep for the next update."""


def give_back_large_blocks() -> None:
    """Return every large block to the system as soon as it is freed; call it before the first thread starts.

    glibc does so at first, but each large block freed raises the size it keeps. Tensors then come from a fragmented
    heap, and a coordinator that holds one model after a round uses the memory of four. A fixed threshold stops that.
    We leave other C libraries alone.
    """
    settings = {
        M_MMAP_THRESHOLD: LARGE_BYTES,
        M_TRIM_THRESHOLD: KEPT_BYTES,
        # Chunks of updates come from the network's thread and are freed by another. In a heap of that thread's own,
        # nobody else could use their memory.
        M_ARENA_MAX: 1,
    }
    mallopt = getattr(_c_library(), "mallopt", None)
    if mallopt is None or not all(mallopt(*setting) == 1 for setting in settings.items()):
        log.debug("cannot set mallopt in this C library; it may keep freed memory")


def give_back_free_memory() -> None:
    """Return all memory that nobody uses at the moment; takes a few milliseconds, and so does using it again."""
    malloc_trim = getattr(_c_library(), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(ctypes.c_size_t(0))


@cache
def _c_library() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if sys.platform.startswith("linux") else None
