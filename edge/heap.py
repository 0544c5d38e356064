"""What the C library keeps of memory that nobody uses any more; elsewhere than on glibc, nothing happens."""

from __future__ import annotations

import ctypes
from functools import cache

__all__ = ["give_back", "spare_memory"]

# malloc.h
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8

OWN_PAGES_BYTES = 1 << 20
"""From this size on, an allocation has pages of its own, which go back to the system with it."""


def spare_memory() -> None:
    """Have this process keep little of what it frees; call it before it starts threads.

    By default glibc raises its threshold with every large array that is freed, up to 32 MB; the next ones then lie in
    its heaps, where smaller allocations soon hold them. And every thread gets a heap.
    """
    if (library := _glibc()) is not None:
        library.mallopt(M_MMAP_THRESHOLD, OWN_PAGES_BYTES)
        library.mallopt(M_ARENA_MAX, 1)


def give_back() -> None:
    """Return all free pages to the system."""
    if (library := _glibc()) is not None:
        library.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(None)
    except OSError:
        return None
    # Other C libraries have a mallopt, too, with other options.
    return library if hasattr(library, "gnu_get_libc_version") and hasattr(library, "malloc_trim") else None
