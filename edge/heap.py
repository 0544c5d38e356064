"""What the C library keeps of memory that nobody uses any more; elsewhere than on glibc, nothing happens."""

from __future__ import annotations

import ctypes
from functools import cache

__all__ = ["give_back", "spare_memory"]

M_ARENA_MAX = -8
"""malloc.h"""


def spare_memory() -> None:
    """Have all threads of this process share one heap; call it before it starts any.

    By default glibc gives every thread its own, and each keeps what it once needed.
    """
    if (library := _glibc()) is not None:
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
