"""`python -m sparsyedge.benchmarks.meter.load compute|memory CORE`: keeps one core busy until its input ends."""

from __future__ import annotations

import os
import select
import sys

import numpy as np

__all__ = ["main"]

COMPUTE_SIDE = 96
"""Two such matrices take 74 kB: they stay in any core's caches."""
MEMORY_BYTES = 16 * 1024 * 1024
"""Larger than the caches of any small board."""
PIECE = 20
"""How many products or copies between two looks at the input."""


def main(argv: list[str]) -> int:
    """Work on the core until the parent closes the pipe, or is gone."""
    kind, core = argv[0], int(argv[1])
    os.sched_setaffinity(0, {core})
    if kind == "compute":
        left = np.random.default_rng(0).random((COMPUTE_SIDE, COMPUTE_SIDE), dtype=np.float32)
    else:
        left = np.ones((MEMORY_BYTES // 4, 1), dtype=np.float32)
    right = np.empty_like(left)
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        for _ in range(PIECE):
            if kind == "compute":
                np.matmul(left, left, out=right)
            else:
                np.copyto(right, left)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
