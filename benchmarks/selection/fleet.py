"""The made-up fleet of `sparsyedge bench selection`: three kinds of Raspberry Pi, modelled.

Seconds of a step are those of `sparsyedge bench arm` (convolutions of a ResNet-18 of width 64, batch 16, profile
trained95, one core; docs/explanation/boards.md). Joules are these seconds times 5.1 V and what Raspberry Pi's
documentation calls the board's typical active current: 400, 600 and 800 mA. Nothing was measured on a board.
"""

from __future__ import annotations

from sparsyedge.benchmarks.simulate.boards import BoardConfig

__all__ = ["BOARDS"]

SUPPLY_V = 5.1


def _board(step_s: float, active_a: float) -> BoardConfig:
    return BoardConfig(step_s=step_s, step_j=round(step_s * active_a * SUPPLY_V, 2))


BOARDS = {"pi-3": _board(3.755, 0.4), "pi-4": _board(1.059, 0.6), "pi-5": _board(0.427, 0.8)}
"""As many of one kind as of another."""
