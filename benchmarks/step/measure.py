"""Interleaved timing: disturbances of the machine hit all contestants alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from sparsyedge.benchmarks.step.contestants import Contestant

__all__ = ["Timing", "compare_losses", "measure"]

Key = TypeVar("Key", bound=Hashable)

WARM_UP = 2
# OpenMP and ORT workers spin for a moment after they finish, on cores that the next contestant needs.
PAUSE_S = 0.002
# Relative. All start from the same weights: equal first losses prove equal forward passes, equal second losses equal
# updates. A value next to a threshold (ReLU, kept activation) may fall on either side and move the second loss a bit.
TOLERANCES = (1e-4, 1e-3)


@dataclass
class Timing:
    """What one contestant needed, and the losses of its first steps."""

    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def median_ms(self) -> float:
        return 1e3 * statistics.median(self.seconds)

    @property
    def min_ms(self) -> float:
        return 1e3 * min(self.seconds)


def measure(contestants: Mapping[Key, Contestant], *, steps: int) -> dict[Key, Timing]:
    """Warm up every contestant, then alternate, one step each; a different one starts every round."""
    timings: dict[Key, Timing] = {key: Timing() for key in contestants}
    for key, contestant in contestants.items():
        timings[key].losses = [contestant.step() for _ in range(WARM_UP)]
    order = list(contestants)
    for turn in range(steps):
        first = turn % len(order)
        for key in order[first:] + order[:first]:
            time.sleep(PAUSE_S)
            start = time.perf_counter()
            contestants[key].step()
            timings[key].seconds.append(time.perf_counter() - start)
    return timings


def compare_losses(losses: Mapping[str, Sequence[float]], *, method: Sequence[str]) -> list[str]:
    """One warning per contestant that computes something else; `method` names those of the same update, ours first."""
    if not losses:
        return []
    # Not ours as reference: if ours is wrong, the warning must name it.
    reference = next((name for name in reversed(method) if name in losses), next(iter(losses)))
    expected = losses[reference]
    warnings = []
    for name, found in losses.items():
        # Plain dense training starts from the same function, but its update differs.
        comparable = len(TOLERANCES) if name in method and reference in method else 1
        for step, tolerance in enumerate(TOLERANCES[:comparable]):
            # `not <=` makes NaN a difference too.
            if not abs(found[step] - expected[step]) <= tolerance * abs(expected[step]):
                warnings.append(
                    f"WARNING: {name} has loss {found[step]:.6f} in step {step + 1}, {reference} {expected[step]:.6f}: "
                    f"they do not compute the same"
                )
                break
    return warnings
