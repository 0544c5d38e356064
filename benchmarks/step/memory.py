"""Peak memory of training, with a separate process for every contestant.

Run as a module, this is that process: it prints the MB that training took on top of the libraries and the data.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from sparsyedge.benchmarks.step.contestants import CONTESTANTS, Variant
from sparsyedge.benchmarks.step.workload import Workload
from sparsyedge.edge.errors import TrainingError

__all__ = ["peak_mb"]

STEPS = 20
TIMEOUT_S = 900


def peak_mb(variant: Variant, workload: Workload, *, steps: int = STEPS) -> float:
    """The peak resident memory of some steps in a fresh process, minus its memory before it opened the model."""
    with tempfile.TemporaryDirectory(prefix="sparsyedge-memory-") as folder:
        file = Path(folder) / "workload.npz"
        workload.save(file)
        arguments = [variant.contestant, variant.label, workload.artifacts.directory, file, workload.threads, steps]
        command = [sys.executable, "-m", "sparsyedge.benchmarks.step.memory", *map(str, arguments)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if run.returncode:
        last = (run.stderr.strip().splitlines() or ["no output"])[-1]
        raise TrainingError(f"the memory run of {variant.contestant} ended with code {run.returncode}: {last}")
    return float(run.stdout.split()[-1])


def main(argv: list[str]) -> int:
    """Train one contestant and print its peak in MB."""
    name, label, artifacts, file, threads, steps = argv
    variant = next(variant for variant in CONTESTANTS[name] if variant.label == label)
    factory = variant.load()
    workload = Workload.load(Path(artifacts), Path(file), threads=int(threads))
    baseline = _status_kb("VmRSS")
    contestant = factory(workload, variant=label)
    _reset_peak()
    for _ in range(int(steps)):
        contestant.step()
    print((_status_kb("VmHWM") - baseline) * 1024 / 1e6)
    return 0


def _reset_peak() -> None:
    """Reset the peak after imports and opening the model; resident memory still counts."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        # Some containers forbid it. The peak then includes opening the model, so it can only be higher.
        return


def _status_kb(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
