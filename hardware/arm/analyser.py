"""Cycles of a loop on a core, as LLVM's machine-code analyser (llvm-mca) models that core; nothing is run.

The analyser assumes that every load hits the first cache and that every branch is predicted.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from sparsyedge.edge.errors import ConfigError
from sparsyedge.hardware.arm.loops import Loop, run_tool

__all__ = ["CORES", "X86_CORES", "Core", "cycles", "find_analyser", "read_report"]

ITERATIONS = 100
TOOLS = ("llvm-mca-19", "llvm-mca-20", "llvm-mca-21")
"""Versions whose models of these cores are the same; before 16 a neoverse-n1 was scheduled like a Cortex-A57."""


@dataclass(frozen=True)
class Core:
    """A core that the analyser knows, and the fused instructions of a whole register that it can start per cycle."""

    name: str
    stands_for: str
    limit: float


CORES = (
    Core("neoverse-n1", "Cortex-A76 (its server twin)", 2.0),
    Core("cortex-a72", "Cortex-A72 (LLVM schedules it like a Cortex-A57)", 1.0),
    Core("cortex-a53", "Cortex-A53", 1.0),
)
X86_CORES = (Core("znver3", "Zen 3, with AVX2", 2.0),)
"""What the model is checked on: this core's kernels can be timed."""


class _Summary(msgspec.Struct, rename="pascal"):
    iterations: int
    total_cycles: int


class _Region(msgspec.Struct, rename="pascal"):
    summary_view: _Summary


class _Report(msgspec.Struct, rename="pascal"):
    code_regions: list[_Region]


def find_analyser() -> str | None:
    """The name of an installed analyser that knows these cores."""
    return next((tool for tool in TOOLS if shutil.which(tool)), None)


def cycles(loops: Sequence[Loop], core: str, triple: str) -> list[float]:
    """Cycles per iteration of each loop, averaged over many in a row."""
    tool = find_analyser()
    if tool is None:
        raise ConfigError(f"no {TOOLS[0]} here; run `make analyser-tools`, or: apt-get install llvm-19")
    flags = [f"-mtriple={triple}", f"-mcpu={core}", f"-iterations={ITERATIONS}", "--json"]
    answer = run_tool([tool, *flags], "".join(_region(number, loop) for number, loop in enumerate(loops)))
    return read_report(answer, len(loops))


def read_report(answer: str, count: int) -> list[float]:
    """Cycles per iteration of each region in the analyser's JSON."""
    try:
        report = msgspec.json.decode(answer, type=_Report)
    except msgspec.DecodeError as error:
        raise ConfigError(f"the analyser's JSON is not what llvm-mca 19 writes: {error}") from error
    if len(report.code_regions) != count:
        raise ConfigError(f"the analyser was given {count} loops and answered for {len(report.code_regions)}")
    return [region.summary_view.total_cycles / region.summary_view.iterations for region in report.code_regions]


def _region(number: int, loop: Loop) -> str:
    """A loop between the marks that the analyser looks for; labels of all loops are in one file."""
    lines = "\n".join(text.replace("top", f"top{number}") if text.endswith("top") else text for text in loop.body)
    return f"# LLVM-MCA-BEGIN loop{number}\ntop{number}:\n{lines}\n# LLVM-MCA-END\n"
