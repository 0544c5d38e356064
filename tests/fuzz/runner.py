"""`make fuzz`: altered input for everything that reads what came from elsewhere.

    python -m fuzz.runner [TARGET...] --inputs N --limit-s S --seed K

Each target runs in a process of its own: with atheris and coverage feedback where that is installed, with plain
mutation elsewhere. The native codec is a program of its own (tests/native/fuzz_codec.cc), made by the Makefile. What is
found is kept in build/fuzz; put it into tests/fuzz/found/TARGET with its fix.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from fuzz.target import SHARES

CODEC = "codec"
CODEC_SHARE = 1 - sum(SHARES.values())
WORKPLACE = Path("build/fuzz")


@dataclass(frozen=True)
class Outcome:
    """What came of one target."""

    target: str
    inputs: int
    seconds: float
    covered: int | None
    """Edges or branches that were reached; None without feedback."""
    failed: bool


def main() -> int:
    arguments = _parser().parse_args()
    outcomes = []
    for name in arguments.targets or [*SHARES, CODEC]:
        share = SHARES.get(name, CODEC_SHARE)
        outcome = _run(name, round(arguments.inputs * share), arguments)
        print(f"{name}: {outcome.inputs:,} inputs in {outcome.seconds:.0f} s", flush=True)
        outcomes.append(outcome)
    print("\n".join(_table(outcomes)))
    return int(any(outcome.failed for outcome in outcomes))


def _run(name: str, inputs: int, arguments: argparse.Namespace) -> Outcome:
    log = WORKPLACE / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = _codec_command(inputs, arguments) if name == CODEC else _python_command(name, inputs, arguments)
    began_s = time.monotonic()
    with log.open("w") as out:
        code = subprocess.run(command, stdout=out, stderr=out, check=False).returncode
    seconds = time.monotonic() - began_s
    said = log.read_text(errors="replace")
    if code:
        print(f"{name}: exit code {code}, see {log}\n" + "\n".join(said.splitlines()[-12:]), flush=True)
    done = [int(number) for number in re.findall(r"^(?:#|Done |)(\d+)(?:\t| runs| inputs)", said, re.MULTILINE)]
    covered = [int(number) for number in re.findall(r"cov: (\d+)", said)]
    return Outcome(name, max(done, default=0), seconds, max(covered, default=None), bool(code))


def _python_command(name: str, inputs: int, arguments: argparse.Namespace) -> list[str]:
    command = [sys.executable, "-m", "fuzz.guided" if _guided() else "fuzz.unguided", name]
    return [*command, str(inputs), str(arguments.limit_s), str(arguments.seed)]


def _codec_command(inputs: int, arguments: argparse.Namespace) -> list[str]:
    """The codec's program: libFuzzer's where clang made it, else the one that goes by numbers."""
    if arguments.codec.name == "fuzz_codec":
        return [str(arguments.codec), str(inputs), str(arguments.seed << 40), str(arguments.limit_s)]
    limits = [f"-runs={inputs}", f"-max_total_time={arguments.limit_s}", "-timeout=20", f"-seed={arguments.seed}"]
    return [str(arguments.codec), *limits, "-len_control=0", "-max_len=512", f"-artifact_prefix={WORKPLACE}/codec-"]


def _guided() -> bool:
    return importlib.util.find_spec("atheris") is not None and "SPARSYEDGE_UNGUIDED" not in os.environ


def _table(outcomes: list[Outcome]) -> list[str]:
    lines = [f"{'target':<14}{'inputs':>10}{'seconds':>9}{'covered':>9}  findings"]
    for outcome in outcomes:
        covered = "" if outcome.covered is None else str(outcome.covered)
        found = "one, see above" if outcome.failed else "none"
        lines.append(f"{outcome.target:<14}{outcome.inputs:>10,}{outcome.seconds:>9.0f}{covered:>9}  {found}")
    total, seconds = sum(outcome.inputs for outcome in outcomes), sum(outcome.seconds for outcome in outcomes)
    return [*lines, f"{'all':<14}{total:>10,}{seconds:>9.0f}"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make fuzz", description="Altered input for everything that reads input.")
    parser.add_argument("targets", nargs="*", choices=[[], *SHARES, CODEC], metavar="TARGET", help="default: all")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="of all targets (default: %(default)s)")
    parser.add_argument("--limit-s", type=int, default=900, help="for one target (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--codec", type=Path, default=Path("build/fuzz_codec"), help="the native codec's program")
    return parser


if __name__ == "__main__":
    sys.exit(main())
