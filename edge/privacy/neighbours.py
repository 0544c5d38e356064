"""Who masks with whom: a ring in an order that a seed decides, each device with the nearest on both sides."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

__all__ = ["neighbours"]


def neighbours(devices: Iterable[str], degree: int, seed: bytes) -> dict[str, tuple[str, ...]]:
    """Each device's neighbours by name: `degree` of them, an even number, or all others if there are no more."""
    ring = sorted(devices, key=lambda device: hashlib.sha256(seed + device.encode()).digest())
    reach = degree // 2
    if 2 * reach >= len(ring) - 1:
        return {device: tuple(sorted(other for other in ring if other != device)) for device in ring}
    steps = [step for step in range(-reach, reach + 1) if step]
    return {
        device: tuple(sorted(ring[(place + step) % len(ring)] for step in steps)) for place, device in enumerate(ring)
    }
