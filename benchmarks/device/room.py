"""Whether a board has room for a workload: memory and disk, before anything is started."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import msgspec

from sparsyedge.benchmarks.device.suite import BATCH, SuiteWorkload

__all__ = ["Need", "available_mb", "missing_room", "need_of"]

FLOAT_BYTES = 4
PROCESS_MB = 150
"""Python, numpy and ONNX Runtime with nothing loaded."""
COPIES = 9
"""Of all weights while a dense step runs: weights, new ones, gradients, theta, the checkpoint, the update's frames."""
ACTIVATIONS = 2
"""Copies of what the layers give: kept for the backward pass, and its gradients."""
MARGIN = 1.15
"""Of a peak measured on another machine."""
DISK_COPIES = 8
"""Of all weights on disk: the artifacts' files, and the state to start from."""


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """What a workload needs, and how that is known."""

    memory_mb: float
    disk_mb: float
    kind: str
    """`measured` on another machine, or `estimated` from the network's size."""


def need_of(workload: SuiteWorkload, measured: dict[str, float]) -> Need:
    """The room that a workload needs; `measured` has peaks by name from other machines."""
    network = workload.network
    weights_mb = network.parameters * FLOAT_BYTES / 1e6
    disk_mb = DISK_COPIES * weights_mb
    if workload.name in measured:
        return Need(memory_mb=MARGIN * measured[workload.name], disk_mb=disk_mb, kind="measured")
    given_mb = BATCH * network.activations * FLOAT_BYTES / 1e6
    memory_mb = PROCESS_MB + COPIES * weights_mb + ACTIVATIONS * given_mb
    return Need(memory_mb=memory_mb, disk_mb=disk_mb, kind="estimated")


def missing_room(need: Need, folder: Path, *, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> str:
    """Why the workload does not fit now, as a sentence; empty if it does."""
    free_mb = available_mb(proc=proc, cgroup=cgroup)
    if free_mb is not None and need.memory_mb > free_mb:
        return (
            f"no room in memory: it needs about {need.memory_mb:.0f} MB ({need.kind}), {free_mb:.0f} MB are available"
        )
    disk_mb = shutil.disk_usage(folder).free / 1e6
    if need.disk_mb > disk_mb:
        return f"no room on disk: it needs about {need.disk_mb:.0f} MB in {folder}, {disk_mb:.0f} MB are free"
    return ""


def available_mb(*, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Memory that a new process can have, by the kernel's estimate and the limit of this container; None if unknown."""
    found = re.search(r"MemAvailable:\s+(\d+) kB", _text(proc / "meminfo"))
    kernel_mb = int(found[1]) * 1024 / 1e6 if found else None
    limit, used = _text(cgroup / "memory.max").strip(), _text(cgroup / "memory.current").strip()
    # "max" is no limit.
    container_mb = (int(limit) - int(used)) / 1e6 if limit.isdecimal() and used.isdecimal() else None
    known = [each for each in (kernel_mb, container_mb) if each is not None]
    return min(known) if known else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
