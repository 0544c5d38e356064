"""Who takes part in a round."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

__all__ = ["sample_cohort"]


def sample_cohort(devices: Iterable[str], size: int, *, seed: int, round_number: int) -> tuple[str, ...]:
    """At most `size` of the devices, in sorted order; a function of its arguments alone.

    Every device draws a lot of its own from seed, round and identity, and the lowest lots win. So one device that comes
    or goes changes one place of the cohort, and no generator's state has to survive a restart.
    """

    def lot(device: str) -> bytes:
        return hashlib.sha256(f"{seed}/{round_number}/{device}".encode()).digest()

    return tuple(sorted(sorted(set(devices), key=lot)[:size]))
