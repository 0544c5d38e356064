"""Reads the plan of a sparse convolution: the passes and lists that `edge/native/ops/plan.h` describes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.errors import ConfigError

__all__ = ["Pass", "Plan", "read_plan"]

MAGIC, VERSION = 0x4E4C5053, 3
HEADER = 32
# conv.h: PassShape, BlockVisits, Visit and GatherStart in int32, and kSinglesAtOnce.
SHAPE, BLOCK, VISIT, GATHER, SINGLES_AT_ONCE = 26, 4, 5, 3, 8
FIELDS = (
    *("rows", "channels", "positions_h", "positions_w", "step", "reach_h", "reach_w"),
    *("src_row", "src_col", "src_pitch", "src_plane"),
    *("dst_row", "dst_col", "dst_step", "dst_pitch", "dst_plane"),
    *("tile_h", "tile_w", "cell_h", "block", "blocks", "row_parts"),
    *("live", "run_total", "visit_total", "place_total"),
)


@dataclass(frozen=True)
class Pass:
    """A pass over one group of 16 images: its shape, and per visit how many runs of 1, 2 and 3 taps it has."""

    shape: dict[str, int]
    runs: NDArray[np.int32]
    """[visits, 3]"""


@dataclass(frozen=True)
class Plan:
    """A layer's passes: forward, then those of the input's gradient, if any."""

    weights: int
    non_zeros: int
    passes: tuple[Pass, ...]

    @property
    def forward(self) -> Pass:
        return self.passes[0]

    @property
    def backward(self) -> tuple[Pass, ...]:
        return self.passes[1:]


def read_plan(plan: NDArray[np.int32]) -> Plan:
    """A plan as SparsePlan writes it."""
    if plan.size < HEADER or (int(plan[0]), int(plan[1])) != (MAGIC, VERSION):
        raise ConfigError(f"a plan begins with {MAGIC}, {VERSION}; this one with {plan[:2].tolist()}")
    at, passes = HEADER, []
    for number in range(int(plan[19])):
        shape = dict(zip(FIELDS, plan[at : at + SHAPE].tolist(), strict=True))
        at += SHAPE + shape["row_parts"] * shape["blocks"] * BLOCK
        visits = shape["visit_total"]
        passes.append(Pass(shape, plan[at : at + visits * VISIT].reshape(visits, VISIT)[:, 2:]))
        at += visits * VISIT + shape["run_total"] + SINGLES_AT_ONCE - 1
        at += visits * GATHER + shape["place_total"] if number else 0
    if at != plan.size:
        raise ConfigError(f"a plan of {plan.size} numbers ends after {at}; this program reads version {VERSION} only")
    return Plan(weights=int(plan[4]), non_zeros=int(plan[3]), passes=tuple(passes))
