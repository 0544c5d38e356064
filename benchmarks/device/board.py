"""Identifies the board and detects throttling, from its firmware and the kernel's files."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from sparsyedge.benchmarks.common.machine import instruction_set, machine
from sparsyedge.edge.training.onnx_runtime import RUNTIME

__all__ = ["fingerprint", "read_throttling"]

# Bits of `vcgencmd get_throttled`: under-voltage, capped, throttled, soft limit; now (0-3) and since the start (16-19).
THROTTLED_BITS = 0xF000F


def fingerprint(*, root: Path = Path("/sys"), proc: Path = Path("/proc")) -> dict[str, Any]:
    """Facts that decide whether two results are comparable."""
    return {
        "board": _text(root / "firmware/devicetree/base/model")
        or _text(root / "class/dmi/id/product_name")
        or "unknown",
        **machine(),
        "architecture": platform.machine(),
        "isa": instruction_set(),
        "runtime": RUNTIME,
        "memory_mb": _memory_mb(proc),
        "kernel": platform.release(),
        "governor": _text(root / "devices/system/cpu/cpu0/cpufreq/scaling_governor") or "unknown",
        "max_mhz": _max_mhz(root),
        "load": round(os.getloadavg()[0], 2),
    }


def read_throttling(*, root: Path = Path("/sys")) -> bool | None:
    """Whether heat or low voltage has throttled the processor since the board started; None if unknown."""
    command = shutil.which("vcgencmd")
    if command is not None:
        try:
            answer = subprocess.run([command, "get_throttled"], capture_output=True, text=True, timeout=5, check=True)
            found = re.search(r"throttled=0x([0-9a-fA-F]+)", answer.stdout)
            return bool(int(found[1], 16) & THROTTLED_BITS) if found else None
        except (OSError, subprocess.SubprocessError):
            return None
    counts = [_text(path) for path in root.glob("devices/system/cpu/cpu*/thermal_throttle/core_throttle_count")]
    return any(int(count) > 0 for count in counts if count.isdecimal()) if counts else None


def _memory_mb(proc: Path) -> int:
    found = re.search(r"MemTotal:\s+(\d+)", _text(proc / "meminfo"))
    return int(found[1]) * 1024 // 1_000_000 if found else 0


def _max_mhz(root: Path) -> int | None:
    text = _text(root / "devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
    return int(text) // 1000 if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip("\0\n ")
    except OSError:
        return ""
