"""The table of docs/how-to/fine-tune.md: `python -m sparsyedge.benchmarks.step.fine_tune_table`, on an idle machine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["row"]

MODELS = {"mobilenet_v2": "MobileNetV2", "vit_tiny": "ViT-tiny"}
TRAINED = ("last:1", "last:2", "all")
STEP = "import sys; from sparsyedge.benchmarks.step.command import main; sys.exit(main(sys.argv[1:]))"
HEAD = (
    "| model | train | faster than torch: medians, minima | our step, ms: median, minimum | peak MB: ours, torch "
    "| bytes: lossless, bf16 |\n|---|---|---|---|---|---|"
)


def row(model: str, train: str, measured: Mapping[str, Any]) -> str:
    """One row of the table, from what `bench step --json` prints."""
    median, least, peak = measured["median_ms"], measured["min_ms"], measured["peak_mb"]
    sent = measured["update_bytes"]
    faster = ", ".join(f"{each['torch_dense'] / each['sparsyedge']:.2f}x" for each in (median, least))
    return (
        f"| {model} | {train} | {faster} | {median['sparsyedge']:.0f}, {least['sparsyedge']:.0f} "
        f"| {peak['sparsyedge']:.0f}, {peak['torch_dense']:.0f} | {sent['lossless']:,}, {sent['bf16']:,} |"
    )


def main() -> int:
    """Measure and print row by row; every row has a process of its own."""
    print(HEAD, flush=True)
    for model, title in MODELS.items():
        for train in TRAINED:
            options = ["--model", model, "--sparsity", ".9", "--train", train, "--memory", "--peers", "torch_dense"]
            command = [sys.executable, "-c", STEP, *options, "--json"]
            measured = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            print(row(title if train == TRAINED[0] else "", train, measured), flush=True)
            for note in measured["notes"]:
                print(f"{model} {train}: {note}", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
