"""What a process and its children use, from /proc: memory, processor time, system calls that wait for the disk."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Peaks", "child_named", "cpu_s", "forget_peaks", "pss_mb", "rss_mb", "tree", "watched"]

SAMPLE_S = 0.1
SLOW_SAMPLES = 5
"""Every how many samples to look at shared pages, for which the kernel walks through all of them."""
FORGET_PEAK = "5"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_UTIME, _CUTIME = 11, 13
"""Places in /proc/PID/stat after the command: user and system time, then those of children that have ended."""


def tree(pid: int) -> list[int]:
    """The process and all its living descendants."""
    found = [pid]
    for parent in found:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            found += [int(child) for child in _read(children).split()]
    return found


def cpu_s(pid: int) -> float:
    """Processor seconds of the process and its descendants, ended ones included."""
    return sum(_own_cpu_s(each) for each in tree(pid))


def rss_mb(pid: int) -> float:
    """Resident megabytes of the process and its descendants; pages that they share count for each."""
    return sum(_status_mb(each, "VmRSS") for each in tree(pid))


def pss_mb(pid: int) -> float:
    """The same with pages that processes share divided among them, so that all processes together count each once."""
    return sum(_field_mb(Path(f"/proc/{each}/smaps_rollup"), "Pss") for each in tree(pid))


def forget_peaks(pid: int) -> float:
    """The most that was resident in the process so far, in megabytes; from now on the kernel counts anew."""
    peak_mb = _status_mb(pid, "VmHWM")
    for each in tree(pid):
        Path(f"/proc/{each}/clear_refs").write_text(FORGET_PEAK)
    return peak_mb


def child_named(name: str) -> int | None:
    """A descendant of this process by its command's name."""
    return next((pid for pid in tree(os.getpid()) if _read(Path(f"/proc/{pid}/comm")).strip() == name), None)


@dataclass
class Peaks:
    """The most that was resident at a time, in megabytes."""

    sum_mb: float = 0.0
    """The process and its descendants, sampled together."""
    private_mb: float = 0.0
    """The same without files that are mapped into memory, which the kernel may drop, and without shared memory."""
    pss_mb: float = 0.0
    """The same as `sum_mb` with shared pages counted once; only of a process with descendants."""
    main_mb: float = 0.0
    samples: int = 0
    children_mb: dict[int, float] = field(default_factory=dict)

    def sample(self, pid: int) -> None:
        """Look once; the kernel keeps each process's own peak."""
        main, *children = tree(pid)
        self.main_mb = max(self.main_mb, _status_mb(main, "VmHWM"))
        for child in children:
            self.children_mb[child] = max(self.children_mb.get(child, 0.0), _status_mb(child, "VmHWM"))
        self.private_mb = max(self.private_mb, sum(_status_mb(each, "RssAnon") for each in (main, *children)))
        self.sum_mb = max(self.sum_mb, rss_mb(pid), *([] if children else [self.main_mb]))
        if children and self.samples % SLOW_SAMPLES == 0:
            self.pss_mb = max(self.pss_mb, pss_mb(pid))
        self.samples += 1


@contextmanager
def watched(*pids: int) -> Iterator[tuple[Peaks, ...]]:
    """The peaks of these processes during the block, sampled in a thread."""
    peaks, over = tuple(Peaks() for _ in pids), threading.Event()

    def watch() -> None:
        while not over.wait(SAMPLE_S):
            for pid, peak in zip(pids, peaks, strict=True):
                peak.sample(pid)

    thread = threading.Thread(target=watch, name="usage", daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        over.set()
        thread.join()


def _own_cpu_s(pid: int) -> float:
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return sum(int(ticks) for ticks in fields[_UTIME : _CUTIME + 2]) / TICKS_PER_S if fields else 0.0


def _status_mb(pid: int, name: str) -> float:
    return _field_mb(Path(f"/proc/{pid}/status"), name)


def _field_mb(path: Path, name: str) -> float:
    found = re.search(rf"^{name}:\s+(\d+) kB", _read(path), re.MULTILINE)
    return int(found.group(1)) * 1024 / 1e6 if found else 0.0


def _read(path: Path) -> str:
    """A file of /proc; empty once its process has ended."""
    try:
        return path.read_text()
    except OSError:
        return ""
