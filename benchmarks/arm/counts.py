"""How often each loop of the convolution runs in a step, from a layer's plan.

`conv.inc` walks tiles, blocks, visits and runs; this counts what it walks without computing anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sparsyedge.benchmarks.arm.plan import Pass

__all__ = ["KERNEL_SETS", "Counts", "KernelSet", "convolve_counts", "grad_weight_counts"]

Counts = Counter[tuple[str, str]]
"""Iterations by kernel and part, named as in `hardware/arm/kernel_loops.py`."""


@dataclass(frozen=True)
class KernelSet:
    """What `simd/*.h` says of a set: tiles that the weight gradient stacks, floats of its register, and how many single
    taps the forward pass takes at a time."""

    grad_stack: int
    register_floats: int
    singles_ahead: int


KERNEL_SETS = {"neon": KernelSet(2, 8, 4), "avx2": KernelSet(2, 8, 1)}
"""Both have tiles of 4 positions and blocks of 18 KiB, so a plan for one is a plan for the other."""


def convolve_counts(one: Pass, kernels: KernelSet) -> Counts:
    """The iterations of a forward pass, or of a pass of the input's gradient, over 16 images."""
    counts: Counts = Counter()
    singles, pairs, triples = one.runs.T.astype(np.int64)
    together = singles // kernels.singles_ahead if kernels.singles_ahead > 1 else 0 * singles
    parts = {
        "visit": len(one.runs),
        "run1": int((singles - kernels.singles_ahead * together).sum()),
        "run2": int(pairs.sum()),
        "run3": int(triples.sum()),
    }
    if kernels.singles_ahead > 1:
        parts[f"run1x{kernels.singles_ahead}"] = int(together.sum())
    for (_, height, width), tiles in _tiles(one.shape, stack=1).items():
        kernel = _kernel("convolve", one.shape, height, width)
        for part, iterations in parts.items():
            counts[kernel, part] += tiles * iterations
    return counts


def grad_weight_counts(one: Pass, kernels: KernelSet) -> Counts:
    """The iterations of the weight gradient, which walks the forward pass, over 16 images."""
    counts: Counts = Counter()
    singles, pairs, triples = one.runs.T.astype(np.int64)
    eights = np.maximum(0, -(-(singles - 4) // 8))
    fours = singles > 8 * eights
    sums = -(-(2 * pairs + 3 * triples) // kernels.register_floats)
    for (stack, height, width), tiles in _tiles(one.shape, stack=kernels.grad_stack).items():
        kernel = _kernel("grad_weight", one.shape, height, width)
        counts[kernel, "visit"] += tiles * len(one.runs)
        counts[kernel, "sums"] += tiles * int(sums.sum())
        for part, iterations in (("singles8", eights), ("singles4", fours), ("run2", pairs), ("run3", triples)):
            counts[kernel, part] += tiles * stack * int(iterations.sum())
    return counts


def _kernel(name: str, shape: dict[str, int], height: int, width: int) -> str:
    return f"{name} {height}x{width} step {shape['step']} to {shape['dst_step']}"


def _tiles(shape: dict[str, int], *, stack: int) -> Counter[tuple[int, int, int]]:
    """How many tiles of each size cover a plane, by (stacked, height, width)."""
    found: Counter[tuple[int, int, int]] = Counter()
    for top in range(0, shape["positions_h"], shape["cell_h"]):
        rows = min(shape["cell_h"], shape["positions_h"] - top)
        for left in range(0, shape["positions_w"], shape["tile_w"]):
            columns = min(shape["tile_w"], shape["positions_w"] - left)
            for stacked, height in _stacks(rows, shape["tile_h"], stack):
                for width in _pieces(columns, shape["tile_w"]):
                    found[stacked, height, width] += 1
    return found


def _stacks(rows: int, tile_h: int, stack: int) -> Iterator[tuple[int, int]]:
    while rows > 0:
        height = _fit(tile_h, rows)
        stacked = _fit(stack, rows // height)
        yield stacked, height
        rows -= stacked * height


def _pieces(columns: int, tile_w: int) -> Iterator[int]:
    while columns > 0:
        width = _fit(tile_w, columns)
        yield width
        columns -= width


def _fit(size: int, left: int) -> int:
    """The largest of size, size / 2, size / 4, ... that is at most `left`."""
    while size > left:
        size //= 2
    return size
