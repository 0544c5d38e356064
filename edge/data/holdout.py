"""Which samples a device keeps for evaluation. A pure function: a sample never changes sides while data grows."""

from __future__ import annotations

import hashlib
import json

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.data.dataset import Samples

__all__ = ["held_out"]

DRAW_BYTES = 8


def held_out(samples: Samples, share: float, *, seed: int, device_id: str) -> NDArray[np.bool_]:
    """True for each sample that is held out, each with probability `share`.

    The sample's content decides, not its place: samples that come or go move no other one, and copies of one sample
    are on one side. Labels do not count, since a new class may renumber them.
    """
    key = hashlib.sha256(json.dumps(["holdout", seed, device_id]).encode("ascii")).digest()
    limit = round(share * 2 ** (8 * DRAW_BYTES))
    return np.fromiter((_draw(sample.tobytes(), key) < limit for sample in samples.x), dtype=bool, count=len(samples))


def _draw(content: bytes, key: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=DRAW_BYTES, key=key).digest(), "big")
