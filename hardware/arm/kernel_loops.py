"""Which loop of the compiled convolution is which: by the function's tile and by how much an iteration multiplies."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from sparsyedge.edge.errors import ConfigError
from sparsyedge.hardware.arm.loops import Function, Loop

__all__ = ["KernelLoop", "convolution_loops"]

LANES = 16
_TILE = re.compile(r"^(ConvolveTile|GradWeightTiles)<Tile<(\d+),(\d+),(\d+),(\d+)>>$")
_NEVER = ("GradWeightTiles", "2")
"""The gradient of the weights reads neighbours in dy, whatever the stride."""
_PASSES = {"ConvolveTile": "convolve", "GradWeightTiles": "grad_weight"}
_WORK = {
    "convolve": {1: "run1", 2: "run2", 3: "run3", 4: "run1x4"},
    "grad_weight": {2: "run2", 3: "run3", 4: "singles4", 8: "singles8"},
}
"""By pass: the loop whose iteration multiplies this many tiles by a weight each."""


@dataclass(frozen=True)
class KernelLoop:
    """A loop of the convolution: its pass, its tile, what an iteration does, and the code of it."""

    kernel: str
    """`convolve 1x4 step 2 to 1`: tiles of 1x4 positions, with sources 2 apart and targets side by side."""
    part: str
    """run1 to run3: taps side by side; run1x4: four taps alone at a time; singles4 and
    singles8: the same in the weight gradient; sums: adds up the lanes of a register of weights; visit: everything
    outside of these loops, once per visit."""
    codes: tuple[Loop, ...]
    """Where the compiler made several of one loop, all of them; they are averaged."""

    def mean(self, of: Callable[[Loop], float]) -> float:
        """The mean over its codes."""
        return sum(of(code) for code in self.codes) / len(self.codes)


def convolution_loops(functions: Iterable[Function], tile: tuple[int, int]) -> list[KernelLoop]:
    """The loops over whole tiles of this height and width, with and without strides, in the order of their names."""
    found: dict[tuple[str, str], list[Loop]] = {}
    for function in functions:
        match = _TILE.match(function.name)
        if match and (int(match[2]), int(match[3])) == tile and (match[1], match[5]) != _NEVER:
            for kernel, part, loop in _loops_of(function, match):
                found.setdefault((kernel, part), []).append(loop)
    missing = [one for one in _PASSES.values() if not any(kernel.startswith(one) for kernel, _ in found)]
    if missing:
        raise ConfigError(
            f"the compiled kernels have no loop of {missing[0]} over tiles of {tile[0]}x{tile[1]} positions"
        )
    return [KernelLoop(kernel, part, tuple(codes)) for (kernel, part), codes in sorted(found.items())]


def _loops_of(function: Function, match: re.Match[str]) -> Iterator[tuple[str, str, Loop]]:
    height, width, step, target = (int(match[i]) for i in range(2, 6))
    pass_name = _PASSES[match[1]]
    kernel = f"{pass_name} {height}x{width} step {step} to {target}"
    yield kernel, "visit", function.rest
    for loop in function.loops:
        tiles, left = divmod(loop.multiply_adds, height * width * LANES)
        part = "sums" if loop.fused == 0 else _WORK[pass_name].get(tiles)
        if part is None or left:
            raise ConfigError(
                f"{function.name} has a loop of {loop.multiply_adds} multiply-adds; known are those that multiply "
                f"{', '.join(map(str, _WORK[pass_name]))} tiles of {height * width * LANES}"
            )
        yield kernel, part, loop
