"""The signing keys that a device trusts right now: one, or two while its fleet's authority is rotated."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sparsyedge.edge.errors import SparsyedgeError

__all__ = ["PinnedKeys"]

Checked = TypeVar("Checked")


class PinnedKeys:
    """Ed25519 public keys in hex, shared by all that check signatures; they change while the device runs."""

    def __init__(self, *keys: str) -> None:
        self.present = keys
        """The keys that count now, at least one."""

    def check(self, check: Callable[[str], Checked]) -> Checked:
        """What `check` returns for the first key that it accepts; raises its error if it accepts none."""
        *others, last = self.present
        for key in others:
            try:
                return check(key)
            except SparsyedgeError:
                continue
        return check(last)
