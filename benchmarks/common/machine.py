"""Describes the machine a figure was measured on; without that, the figure means nothing elsewhere."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Set
from pathlib import Path
from typing import Any

__all__ = ["cap_peers", "disturbance", "instruction_set", "machine"]

PACKAGES = ("numpy", "onnxruntime-training", "onnxruntime", "torch", "sparseprop")
FORCE_ISA = "SPARSYEDGE_FORCE_ISA"
# The CPU flags that each x86 kernel table of the op library needs, fastest first.
X86_FLAGS = {
    "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"},
    "avx2": {"avx2", "fma"},
}
# Settings that limit torch (its own kernels, oneDNN, MKL) to an instruction set. onnxruntime has no such setting.
TORCH_CAPS = {
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
}


def machine() -> dict[str, Any]:
    """The CPU, its cores, our commit and the versions of the competing libraries."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"cpu": _cpu_model(), "cores": len(os.sched_getaffinity(0)), "commit": _commit(), "versions": versions}


def instruction_set() -> str:
    """The kernels that the op library uses here: the forced ones, or the fastest that the CPU supports."""
    forced = os.environ.get(FORCE_ISA)
    if forced:
        return forced
    if platform.machine() in ("aarch64", "arm64"):
        return "neon"
    flags = _cpu_flags()
    return next((isa for isa, needed in X86_FLAGS.items() if needed <= flags), "scalar")


def cap_peers() -> str | None:
    """Limit torch, before its import, to the instruction set forced on our ops; returns a note on who is limited."""
    forced = os.environ.get(FORCE_ISA)
    if not forced:
        return None
    caps = TORCH_CAPS.get(forced)
    if caps is None:
        return f"{FORCE_ISA}={forced} limits our ops only: torch has no such setting"
    os.environ.update(caps)
    return f"{FORCE_ISA}={forced} limits our ops and torch, but not stock onnxruntime ops and sparseprop"


def disturbance(threads: int) -> str | None:
    """A warning if the last minute's load clearly exceeded the benchmark's own; None on a quiet machine."""
    load = os.getloadavg()[0]
    if load <= threads + 0.5:
        return None
    return f"WARNING: load {load:.1f} with {threads} of our threads: other work on this machine disturbed the times"


def _cpu_model() -> str:
    return next((line for key, line in _cpuinfo() if key in ("model name", "Model")), platform.machine())


def _cpu_flags() -> Set[str]:
    return next((set(line.split()) for key, line in _cpuinfo() if key == "flags"), set())


def _cpuinfo() -> list[tuple[str, str]]:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    pairs = [line.partition(":") for line in lines]
    return [(key.strip(), value.strip()) for key, _, value in pairs]


def _commit() -> str | None:
    """The commit of this checkout, marked if there are local changes; None in an installation from a wheel."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        run = subprocess.run(
            command, cwd=Path(__file__).resolve().parent, capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.strip()
