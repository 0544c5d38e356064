"""`make bench-arm-static`: fused multiply-adds per cycle of the NEON convolution on three cores, without a board.

The loops are compiled, found in the machine code and given to LLVM's analyser. This is a model of each core, not a
measurement: no board was used.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.storage import write_atomically
from sparsyedge.hardware.arm.analyser import CORES, X86_CORES, Core, cycles
from sparsyedge.hardware.arm.kernel_loops import KernelLoop, convolution_loops
from sparsyedge.hardware.arm.loops import AVX2, NEON, InstructionSet, Loop, compiled_functions

__all__ = ["analyse", "as_document", "main", "table"]

TILE = (1, 4)
"""Of NEON's kernels, in planes at least 4 wide."""


def table(loops: Sequence[KernelLoop], by_core: Mapping[str, Mapping[Loop, float]]) -> str:
    """A row per loop that multiplies: instructions, those on the stack, and fused ones per cycle on each core."""
    heads = [f"{core.name}, of {core.limit:g}" for core in CORES]
    rows = [f"| loop | instructions | fused | on the stack | {' | '.join(heads)} |", "|---" * (4 + len(CORES)) + "|"]
    for one in loops:
        fused = one.mean(lambda code: code.fused)
        if fused:
            rates = [f"{fused / one.mean(by_core[core.name].__getitem__):.2f}" for core in CORES]
            sizes = [one.mean(lambda code: len(code.body)), fused, one.mean(lambda code: code.stack)]
            cells = [f"{one.kernel}, {one.part}", *(f"{size:g}" for size in sizes), *rates]
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def analyse(which: InstructionSet, cores: Sequence[Core]) -> tuple[list[KernelLoop], dict[str, dict[Loop, float]]]:
    """A set's loops, and the cycles of each piece of code on every core."""
    loops = convolution_loops(compiled_functions(which), TILE)
    codes = [code for one in loops for code in one.codes]
    return loops, {core.name: dict(zip(codes, cycles(codes, core.name, which.triple), strict=True)) for core in cores}


def as_document(loops: Sequence[KernelLoop], by_core: Mapping[str, Mapping[Loop, float]]) -> dict[str, Any]:
    """Cycles per iteration by core, kernel and part."""
    document: dict[str, Any] = {}
    for core, of in by_core.items():
        for one in loops:
            value = round(one.mean(lambda code, of=of: of[code]), 2)  # type: ignore[misc]
            document.setdefault(core, {}).setdefault(one.kernel, {})[one.part] = value
    return document


def main(argv: list[str]) -> int:
    """Print the table; with --out, keep the cycles for `sparsyedge bench arm`."""
    parser = argparse.ArgumentParser(prog="python -m sparsyedge.hardware.arm.static_report", description=__doc__)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write cycles per iteration there, as JSON")
    arguments = parser.parse_args(argv)
    try:
        loops, by_core = analyse(NEON, CORES)
        x86 = as_document(*analyse(AVX2, X86_CORES)) if arguments.out else {}
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if arguments.out:
        document = {**as_document(loops, by_core), **x86}
        write_atomically(arguments.out, msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
    print("fused multiply-adds per cycle, modelled by llvm-mca; no speed on a real board was measured\n")
    print(table(loops, by_core))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
