"""Why a release cannot be made, in one sentence."""

from __future__ import annotations

from sparsyedge.edge.errors import SparsyedgeError

__all__ = ["ReleaseRefused"]


class ReleaseRefused(SparsyedgeError):
    """The commit cannot be released as it is, or what was built from it is not fit to publish."""
