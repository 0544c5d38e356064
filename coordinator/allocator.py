"""How the C library's memory is to be used by a process that now and then handles whole models."""

from __future__ import annotations

import ctypes
import logging
import sys

__all__ = ["give_back_large_blocks"]

log = logging.getLogger(__name__)

M_MMAP_THRESHOLD = -3
LARGE_BYTES = 256 * 1024


def give_back_large_blocks() -> None:
    """Have every block of some size go back to the system when it is freed.

    glibc does so at first, but learns from each large block that is freed to keep the next ones of that size: tensors
    then come from a heap with holes in it, and a coordinator that holds one model after the close of a round has the
    memory of four. Setting the limit ends the learning. Other C libraries have other ways, and are left alone.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or mallopt(M_MMAP_THRESHOLD, LARGE_BYTES) != 1:
        log.debug("this C library keeps the memory that is freed as it likes")
