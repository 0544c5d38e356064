"""A short hash of what a frame takes from its base, so that nobody decodes it with another model. No I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.wire.envelope import BASE_CHECK_BYTES

__all__ = ["base_check"]


def base_check(used: Iterable[NDArray[np.uint32]]) -> bytes:
    """A short hash of the base entries that a frame builds on, and of their positions; empty if it uses none.

    A wrong base has other entries, so we notice before we decode a wrong model.
    """
    digest = None
    for piece in used:
        digest = digest or hashlib.sha256()
        digest.update(piece.data)
    return digest.digest()[:BASE_CHECK_BYTES] if digest else b""
