"""A workload's processes: how each ended, also where the kernel killed it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

__all__ = ["WorkloadEnded", "run_child"]


class WorkloadEnded(Exception):
    """A process of a workload did not finish; the text says how it ended."""


def run_child(module: str, arguments: Sequence[str], *, limit_s: float, what: str) -> str:
    """Run a module of ours to its end and return what it printed; raises WorkloadEnded if it did not succeed."""
    # Otherwise numpy's threads would count as ours.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise WorkloadEnded(f"no time: {what} took more than the {limit_s:.0f} s allowed, and was ended") from None
    if done.returncode == 0:
        return done.stdout
    raise WorkloadEnded(f"{what} {_ending(done.returncode, done.stderr)}")


def _ending(code: int, said: str) -> str:
    if code == -signal.SIGKILL:
        return "was killed (SIGKILL), as the kernel does when memory runs out"
    reason = (said.strip().splitlines() or ["no reason given"])[-1]
    if code < 0:
        return f"was ended by signal {-code} ({signal.Signals(-code).name}): {reason}"
    return f"ended with code {code}: {reason}"
