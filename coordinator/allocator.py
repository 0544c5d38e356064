"""Tunes the C library's allocator for a process that now and then handles whole models."""

from __future__ import annotations

import ctypes
import logging
import sys

__all__ = ["give_back_large_blocks"]

log = logging.getLogger(__name__)

M_MMAP_THRESHOLD = -3
LARGE_BYTES = 256 * 1024


def give_back_large_blocks() -> None:
    """Return every large block to the system as soon as it is freed.

    glibc does so at first, but each large block freed raises the size it keeps. Tensors then come from a fragmented
    heap, and a coordinator that holds one model after a round uses the memory of four. A fixed threshold stops that.
    We leave other C libraries alone.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or mallopt(M_MMAP_THRESHOLD, LARGE_BYTES) != 1:
        log.debug("cannot set mallopt in this C library; it may keep freed memory")
