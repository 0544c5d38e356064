"""What a figure was measured on: without it the figure means nothing elsewhere."""

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
# What the op library asks of a CPU for each of its x86 kernel tables, the fastest first.
X86_FLAGS = {
    "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"},
    "avx2": {"avx2", "fma"},
}
# How torch (its own kernels, oneDNN, MKL) is held to an instruction set. onnxruntime has no such setting.
TORCH_CAPS = {
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
}


def machine() -> dict[str, Any]:
    """The CPU, its cores, the commit of the code and the versions of the libraries that compete."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"cpu": _cpu_model(), "cores": len(os.sched_getaffinity(0)), "commit": _commit(), "versions": versions}


def instruction_set() -> str:
    """The kernels that the op library uses here: the fastest that the CPU has, or the one that is forced."""
    forced = os.environ.get(FORCE_ISA)
    if forced:
        return forced
    if platform.machine() in ("aarch64", "arm64"):
        return "neon"
    flags = _cpu_flags()
    return next((isa for isa, needed in X86_FLAGS.items() if needed <= flags), "scalar")


def cap_peers() -> str | None:
    """Hold torch, before it is imported, to the instruction set that our ops are forced to; says whom that reaches."""
    forced = os.environ.get(FORCE_ISA)
    if not forced:
        return None
    caps = TORCH_CAPS.get(forced)
    if caps is None:
        return f"{FORCE_ISA}={forced} holds our ops only: torch knows no such limit"
    os.environ.update(caps)
    return f"{FORCE_ISA}={forced} holds our ops and torch; stock onnxruntime ops and sparseprop stay as they are"


def disturbance(threads: int) -> str | None:
    """A warning where the last minute's load was clearly more than the benchmark's own, None on a quiet machine."""
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
    """The commit that this file belongs to, marked when there are changes; None in an installation from a wheel."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        run = subprocess.run(
            command, cwd=Path(__file__).resolve().parent, capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.strip()
