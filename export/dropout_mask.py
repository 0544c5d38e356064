"""The elements that a device's dropout keeps: the generator of edge/native/ops/dropout.cc in numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["dropout_mask"]

SEGMENT = 65_536
STEP = 0x9E3779B97F4A7C15
WORD = (1 << 64) - 1


def dropout_mask(seed: int, stream: int, count: int, ratio: float) -> NDArray[np.bool_]:
    """Which of `count` elements stay; `stream` numbers the dropouts of a network."""
    threshold = np.uint32(float(np.float32(ratio)) * 2**32)
    return random_bits(seed, stream, count) >= threshold


def random_bits(seed: int, stream: int, count: int) -> NDArray[np.uint32]:
    """32 bits for every element of a flat tensor."""
    parts = [np.zeros(0, np.uint32)]
    for begin in range(0, count, SEGMENT):
        key = _segment_key(seed, stream, begin // SEGMENT)
        low, high = np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32)
        place = np.arange(min(SEGMENT, count - begin), dtype=np.uint32)
        parts.append(_mix_elements(_mix_elements(place * np.uint32(0x9E3779B9) + low) + high))
    return np.concatenate(parts)


def _segment_key(seed: int, stream: int, segment: int) -> int:
    key = _mix((seed + STEP) & WORD)
    key = _mix((key + (stream + 1) * STEP) & WORD)
    return _mix((key + (segment + 1) * STEP) & WORD)


def _mix(value: int) -> int:
    """The finaliser of splitmix64."""
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & WORD
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & WORD
    return value ^ value >> 31


def _mix_elements(bits: NDArray[np.uint32]) -> NDArray[np.uint32]:
    bits = (bits ^ bits >> np.uint32(16)) * np.uint32(0x7FEB352D)
    bits = (bits ^ bits >> np.uint32(15)) * np.uint32(0x846CA68B)
    return bits ^ bits >> np.uint32(16)
