"""The loops of the compiled kernels: compiles them, disassembles them and finds each function's innermost loops.

A loop is what lies between the target of a backward branch and that branch.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from sparsyedge.edge.errors import ConfigError

__all__ = [
    "AVX2",
    "AVX512",
    "NEON",
    "Function",
    "InstructionSet",
    "Loop",
    "compiled_functions",
    "find_functions",
    "run_tool",
]

KERNELS = Path("edge/native/kernels")
FLAGS = ("-std=c++17", "-O3", "-DNDEBUG", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off")
"""Those of CMakeLists.txt: what is analysed must be what boards run."""
_SHORTER = (
    (r"sparsyedge::kernels::(\w+::)?|\(anonymous namespace\)::|\(\w+::Activation\)|^void ", ""),
    (r", ", ","),
    (r" >", ">"),
)
_FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:$", re.MULTILINE)
_INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+(.*)$", re.MULTILINE)
_TARGET = re.compile(r"\b([0-9a-f]+) <[^>]*>.*$")


@dataclass(frozen=True)
class InstructionSet:
    """How to compile a file of kernels and read its disassembly."""

    name: str
    compiler: str
    flags: tuple[str, ...]
    objdump: str
    fused: str
    lanes: int
    branch: str
    stack: str
    comment: str
    triple: str


NEON = InstructionSet(
    name="neon",
    compiler="aarch64-linux-gnu-g++",
    flags=(),
    objdump="aarch64-linux-gnu-objdump",
    fused=r"^f(ml[as]|mul)\b.*\.4s",
    lanes=4,
    branch=r"^(b\.|cbn?z|tbn?z)",
    stack=r"\[sp",
    comment="//",
    triple="aarch64-linux-gnu",
)
AVX2 = InstructionSet(
    name="avx2",
    compiler="g++",
    flags=("-mavx2", "-mfma"),
    objdump="objdump",
    fused=r"^v(fn?madd\d*|mul)ps\b",
    lanes=8,
    branch=r"^j(?!mp)",
    stack=r"\(%rsp",
    comment="#",
    triple="x86_64-linux-gnu",
)
AVX512 = replace(AVX2, name="avx512", flags=("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"), lanes=16)


@dataclass(frozen=True)
class Loop:
    """A stretch of code that repeats: its instructions in assembler syntax, with branches to a label `top`."""

    body: tuple[str, ...]
    fused: int
    stack: int
    lanes: int

    @property
    def multiply_adds(self) -> int:
        return self.fused * self.lanes


@dataclass(frozen=True)
class Function:
    """A kernel: its innermost loops in the order of their code, and all that is in none of them."""

    name: str
    loops: tuple[Loop, ...]
    rest: Loop


def compiled_functions(which: InstructionSet) -> list[Function]:
    """This set's kernels, compiled from the sources in this folder."""
    source = KERNELS / f"{which.name}.cc"
    if not source.exists():
        raise ConfigError(f"no {source} here; run this in the folder of the sources")
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "kernels.o"
        run_tool([which.compiler, *FLAGS, *which.flags, "-c", str(source), "-o", str(built)])
        return find_functions(run_tool([which.objdump, "-d", "-C", "--no-show-raw-insn", str(built)]), which)


def find_functions(disassembly: str, which: InstructionSet) -> list[Function]:
    """The functions of a disassembly that have loops."""
    found = []
    for text in disassembly.split("\n\n"):
        name = _FUNCTION.search(text)
        function = _function(_short(name.group(1)), _INSTRUCTION.findall(text), which) if name else None
        if function and function.loops:
            found.append(function)
    return found


def _short(name: str) -> str:
    """`ConvolveTile<Tile<1,4,1,1>>`: without namespaces, result and arguments."""
    shorter = name
    for pattern, replacement in _SHORTER:
        shorter = re.sub(pattern, replacement, shorter)
    return shorter.split("(")[0]


def _function(name: str, lines: list[tuple[str, str]], which: InstructionSet) -> Function:
    texts = [text.split(which.comment)[0].replace("\t", " ").strip() for _, text in lines]
    spans = _innermost(_backward_spans(texts, [int(address, 16) for address, _ in lines], which))
    rest = [i for i in range(len(texts)) if not any(begin <= i <= end for begin, end in spans)]
    loops = tuple(_loop(texts[begin : end + 1], which) for begin, end in spans)
    return Function(name, loops, _loop([texts[i] for i in rest], which))


def _loop(texts: list[str], which: InstructionSet) -> Loop:
    return Loop(
        body=tuple(_TARGET.sub("top", text) for text in texts),
        fused=sum(bool(re.match(which.fused, text)) for text in texts),
        stack=sum(bool(re.search(which.stack, text)) for text in texts),
        lanes=which.lanes,
    )


def _backward_spans(texts: list[str], addresses: list[int], which: InstructionSet) -> list[tuple[int, int]]:
    """First and last instruction of everything that a conditional branch leads back over."""
    at = {address: index for index, address in enumerate(addresses)}
    spans = []
    for index, text in enumerate(texts):
        target = _TARGET.search(text) if re.match(which.branch, text) else None
        begin = at.get(int(target.group(1), 16)) if target else None
        if begin is not None and begin <= index:
            spans.append((begin, index))
    return spans


def _innermost(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those that contain no other, in order."""
    kept: list[tuple[int, int]] = []
    for begin, end in sorted(spans, key=lambda span: span[1] - span[0]):
        if not any(begin <= last and first <= end for first, last in kept):
            kept.append((begin, end))
    return sorted(kept)


def run_tool(command: list[str], text: str | None = None) -> str:
    """What the command prints; without it, or if it fails, an error that says so in a sentence."""
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ConfigError(f"no {command[0]} here; run `make analyser-tools cross-tools`") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ConfigError(f"{command[0]} failed: {last}")
    return done.stdout
