"""`make bench-arm-static`: instructions per multiply-add of the convolution kernels, NEON beside AVX2, without a board.

Both are compiled and disassembled; innermost loops are found by their backward branches. A loop's multiply-adds are its
fused instructions times the floats of a register; its other instructions are overhead. Fewer is better. This says
nothing about speed: we have not measured a real board.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sparsyedge.edge.errors import ConfigError

__all__ = ["SETS", "InstructionSet", "Loop", "innermost_loops", "measure"]

KERNELS = Path("edge/native/kernels")
FLAGS = ("-std=c++17", "-O3", "-DNDEBUG", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off")
LEAST_FUSED = 8
"""A loop with fewer fused instructions is not part of the convolution."""
TILE_FLOATS = 64
"""Floats in a full tile, the same for both sets: 4 positions of 16 lanes."""


@dataclass(frozen=True)
class InstructionSet:
    """How to compile a kernel file and read its disassembly."""

    name: str
    compiler: str
    flags: tuple[str, ...]
    objdump: str
    fused: str
    lanes: int
    branch: str
    stack: str


SETS = (
    InstructionSet(
        "neon",
        "aarch64-linux-gnu-g++",
        (),
        "aarch64-linux-gnu-objdump",
        r"^fml[as]\b",
        4,
        r"^(b\.|cbn?z|tbn?z)",
        r"\[sp",
    ),
    InstructionSet("avx2", "g++", ("-mavx2", "-mfma"), "objdump", r"^vfn?madd.*[ps]s\b", 8, r"^j(?!mp)", r"\(%rsp"),
)


@dataclass(frozen=True)
class Loop:
    """An innermost loop: its instructions, how many of them are fused, and how many touch the stack."""

    instructions: int
    fused: int
    stack: int
    lanes: int

    @property
    def per_multiply_add(self) -> float:
        return self.instructions / (self.fused * self.lanes)

    @property
    def per_fused(self) -> float:
        return self.instructions / self.fused


def measure(which: InstructionSet) -> list[Loop]:
    """The convolution's loops in this set's kernels, largest first."""
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "kernels.o"
        source = KERNELS / f"{which.name}.cc"
        _run([which.compiler, *FLAGS, *which.flags, "-c", str(source), "-o", str(built)])
        text = _run([which.objdump, "-d", "--no-show-raw-insn", str(built)])
    loops = innermost_loops(text, which)
    return sorted((loop for loop in loops if loop.fused >= LEAST_FUSED), key=lambda loop: -loop.fused)


def innermost_loops(disassembly: str, which: InstructionSet) -> list[Loop]:
    """Every span from a backward branch's target to the branch itself that contains no other such span."""
    found: list[Loop] = []
    for function in re.split(r"\n\n", disassembly):
        lines = re.findall(r"^\s*([0-9a-f]+):\s+(.*)$", function, re.MULTILINE)
        at = {int(address, 16): index for index, (address, _) in enumerate(lines)}
        texts = [text.replace("\t", " ") for _, text in lines]
        spans = sorted(_backward_spans(texts, lines, at, which), key=lambda span: span[1] - span[0])
        taken: list[tuple[int, int]] = []
        for begin, end in spans:
            if any(begin <= other[0] and other[1] <= end for other in taken):
                continue
            taken.append((begin, end))
            body = texts[begin : end + 1]
            fused = sum(bool(re.match(which.fused, text)) for text in body)
            found.append(Loop(len(body), fused, sum(bool(re.search(which.stack, text)) for text in body), which.lanes))
    return found


def _backward_spans(
    texts: list[str], lines: list[tuple[str, str]], at: dict[int, int], which: InstructionSet
) -> list[tuple[int, int]]:
    spans = []
    for index, text in enumerate(texts):
        if re.match(which.branch, text):
            target = re.search(r"\b([0-9a-f]+) <", text)
            begin = at.get(int(target.group(1), 16)) if target else None
            if begin is not None and begin <= index:
                spans.append((begin, index))
    return spans


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ConfigError(f"no {command[0]} here; run `make setup`") from error
    if done.returncode:
        raise ConfigError(f"{command[0]} failed: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout


def _row(taps: int, name: str, loops: list[Loop]) -> str:
    """Averages over all loops of one size: forward, gradients, strides and tile shapes."""
    count = max(len(loops), 1)
    instructions, fused, stack = (
        sum(getattr(loop, key) for loop in loops) for key in ("instructions", "fused", "stack")
    )
    lanes = loops[0].lanes if loops else 1
    return (
        f"| {taps} taps of a tile, {taps * TILE_FLOATS} multiply-adds | {name} | {len(loops)} "
        f"| {instructions / count:.0f} | {instructions / max(fused, 1):.2f} "
        f"| {instructions / max(fused, 1) / lanes:.3f} | {stack / count:.1f} |"
    )


def main(argv: list[str]) -> int:
    """Print a table that compares both sets."""
    argparse.ArgumentParser(prog="python -m sparsyedge.hardware.arm.instructions", description=__doc__).parse_args(argv)
    print(
        "| an iteration computes | kernels | loops | instructions | per fused one | per multiply-add | on the stack |"
    )
    print("|---|---|---|---|---|---|---|")
    try:
        measured = {which.name: measure(which) for which in SETS}
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for taps in (3, 2, 1):
        for name, loops in measured.items():
            print(_row(taps, name, [loop for loop in loops if loop.fused * loop.lanes == taps * TILE_FLOATS]))
    print("\nCounted in compiled code; no speed on a real board was measured.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
