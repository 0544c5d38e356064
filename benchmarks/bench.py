"""`sparsyedge bench`: a table of benchmarks, each imported when it is run."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from typing import cast

from sparsyedge.edge.errors import ConfigError

__all__ = ["BENCHMARKS", "main"]

BENCHMARKS = {
    "codecs": ("sparsyedge.benchmarks.codecs:main", "accuracy that each codec of the wire costs, on federated runs"),
    "step": ("sparsyedge.benchmarks.step.command:main", "time and memory of one training step, against peers"),
    "paper": ("sparsyedge.benchmarks.paper.command:main", "the tables and figures of the paper, run on this machine"),
    "device": ("sparsyedge.benchmarks.device.command:main", "what training costs this board, dense against sparse"),
    "compare": ("sparsyedge.benchmarks.device.command:compare", "results of `bench device` beside each other"),
    "runtime": ("sparsyedge.benchmarks.runtime:main", "a step in any onnxruntime against onnxruntime-training's API"),
    "footprint": ("sparsyedge.benchmarks.footprint:main", "what a device's install takes on disk and in memory"),
    "dropout": ("sparsyedge.benchmarks.dropout:main", "accuracy when devices are lost in every round"),
    "attacks": ("sparsyedge.benchmarks.attacks.command:main", "accuracy under hostile members, by aggregation rule"),
    "rounds": ("sparsyedge.benchmarks.rounds.command:main", "one round of many devices: speed, memory, losses"),
    "wire": ("sparsyedge.benchmarks.wire:main", "bytes, ratio, speed and error of the frame's codecs, against peers"),
}
"""Benchmark to where it lives ("module:function", taking the remaining arguments) and what it measures."""


def main(argv: list[str]) -> int:
    """The command line of `sparsyedge bench`."""
    name, rest = (argv[0], argv[1:]) if argv else ("--help", [])
    if name in ("-h", "--help"):
        print(_usage())
        return 0
    if name not in BENCHMARKS:
        near = difflib.get_close_matches(name, BENCHMARKS, n=1)
        hint = f"did you mean `{near[0]}`?" if near else f"there are: {', '.join(BENCHMARKS)}"
        raise ConfigError(f"no benchmark `{name}`; {hint}")
    module, _, function = BENCHMARKS[name][0].partition(":")
    run = cast("Callable[[list[str]], int]", getattr(importlib.import_module(module), function))
    return run(rest)


def _usage() -> str:
    lines = [
        "usage: sparsyedge bench BENCHMARK ...",
        "",
        *(f"  {name:<10} {summary}" for name, (_, summary) in BENCHMARKS.items()),
        "",
        "`sparsyedge bench BENCHMARK --help` says more.",
    ]
    return "\n".join(lines)
