"""The model of a step's convolutions: counted iterations times modelled cycles, beside the memory they must move.

Nothing here is measured. Loads that miss the first cache cost nothing but what memory can move at best, and what is not
a convolution (batch norm, saved activations, the update) is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

import msgspec

from sparsyedge.benchmarks.arm.boards import Board
from sparsyedge.benchmarks.arm.counts import Counts, KernelSet, convolve_counts, grad_weight_counts
from sparsyedge.benchmarks.arm.plan import Pass, Plan
from sparsyedge.edge.errors import ConfigError

__all__ = ["PARTS", "Cycles", "LayerWork", "board_s", "layer_work", "modelled_s", "read_cycles"]

Cycles = Mapping[str, Mapping[str, float]]
"""Of an iteration, by kernel and part."""
PARTS = ("conv_forward", "grad_input", "grad_weight")
POSITION_BYTES = 64


@dataclass(frozen=True)
class LayerWork:
    """What a layer's passes do in a step of 16 images, by part: iterations of loops, and bytes moved at least."""

    name: str
    counts: Mapping[str, Counts]
    bytes: Mapping[str, int]


def read_cycles() -> Mapping[str, Cycles]:
    """By core, what `make bench-arm-static` kept."""
    text = resources.files("sparsyedge.benchmarks.arm").joinpath("cycles.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, dict[str, dict[str, float]]])


def layer_work(name: str, plan: Plan, kernels: KernelSet) -> LayerWork:
    """The work of one convolution. Each tensor enters or leaves memory once, whole."""
    backward: Counts = Counter()
    for one in plan.backward:
        backward += convolve_counts(one, kernels)
    source, target = _source_bytes(plan.forward), _target_bytes(plan.forward)
    both = source + target
    return LayerWork(
        name,
        {
            "conv_forward": convolve_counts(plan.forward, kernels),
            "grad_input": backward,
            "grad_weight": grad_weight_counts(plan.forward, kernels),
        },
        {"conv_forward": both, "grad_input": both if plan.backward else 0, "grad_weight": both},
    )


def modelled_s(work: LayerWork, part: str, cycles: Cycles, clock_ghz: float, memory_gb_s: float) -> tuple[float, float]:
    """Seconds of one part by its cycles and by its bytes; the larger one is the model's answer."""
    total = 0.0
    for (kernel, loop), iterations in work.counts[part].items():
        if kernel in cycles:
            total += iterations * _cycles_of(cycles, kernel, loop)
    return total / (clock_ghz * 1e9), work.bytes[part] / (memory_gb_s * 1e9)


def _cycles_of(cycles: Cycles, kernel: str, loop: str) -> float:
    try:
        return cycles[kernel][loop]
    except KeyError as error:
        raise ConfigError(f"no cycles of {kernel}, {loop}; run `make bench-arm-static`") from error


def board_s(work: LayerWork, part: str, cycles: Cycles, board: Board) -> float:
    """The modelled seconds of one part on a board."""
    return max(modelled_s(work, part, cycles, board.clock_ghz, board.memory_gb_s))


def _source_bytes(one: Pass) -> int:
    return one.shape["channels"] * one.shape["src_plane"] * POSITION_BYTES


def _target_bytes(one: Pass) -> int:
    return one.shape["rows"] * one.shape["dst_plane"] * POSITION_BYTES
