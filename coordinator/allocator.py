"""Tunes the C library's allocator for a process that now and then handles whole models."""

from __future__ import annotations

import ctypes
import logging
import sys

__all__ = ["give_back_large_blocks"]

log = logging.getLogger(__name__)

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
LARGE_BYTES = 3 << 20
"""Larger than what an update takes while it is checked: clearing fresh pages for each would take half of the time."""
KEPT_BYTES = 16 << 20
"""Free memory to keep for the next update."""


def give_back_large_blocks() -> None:
    """Return every large block to the system as soon as it is freed.

    glibc does so at first, but each large block freed raises the size it keeps. Tensors then come from a fragmented
    heap, and a coordinator that holds one model after a round uses the memory of four. A fixed threshold stops that.
    We leave other C libraries alone.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or 1 not in (mallopt(M_MMAP_THRESHOLD, LARGE_BYTES), mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)):
        log.debug("cannot set mallopt in this C library; it may keep freed memory")
