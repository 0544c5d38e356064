"""Processor energy through perf's events, for kernels that have no powercap or let only root read it.

    bus/event_source/devices/power/type                     22, the number of this source of events
    bus/event_source/devices/power/cpumask                  0,8: one processor per package
    bus/event_source/devices/power/format/event             config:0-7
    bus/event_source/devices/power/events/energy-pkg        event=0x02
    bus/event_source/devices/power/events/energy-pkg.scale  2.3283064365386962890625e-10
    bus/event_source/devices/power/events/energy-pkg.unit   Joules

The counters are the same as those of `rapl`, 64 bits wide, and never wrap. The kernel opens them for CAP_PERFMON, for
root, and for everybody where kernel.perf_event_paranoid is 0 or less.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import platform
import re
import struct
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Self

from sparsyedge.edge.phase_costs import Kind
from sparsyedge.hardware.meters.energy_counter import CounterMeter

__all__ = ["PerfEnergyMeter", "open_event"]

log = logging.getLogger(__name__)

EVENT = "energy-pkg"
_CALL_NUMBERS = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "armv7l": 364, "i686": 336}
_ATTRIBUTES_BYTES = 64
"""perf_event_attr as the first kernels had it; later ones fill up with zeros."""
_CLOEXEC = 8
_MOST_PROCESSORS = 64


class PerfEnergyMeter(CounterMeter):
    """Joules of all processor packages, from all processes; excludes memory and board."""

    name: str = "perf"
    kind: Kind = "measured-rails"
    priority: int = 25  # below rapl: the same counters, without rights on a kernel's interface for profilers
    needs: str = "it needs the kernel's power events and root, CAP_PERFMON or kernel.perf_event_paranoid=0"

    def __init__(
        self, descriptors: list[int], joules_per_count: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Owns the descriptors of opened events."""
        super().__init__([partial(_joules, each, joules_per_count) for each in descriptors], clock=clock)
        weakref.finalize(self, _close, descriptors)

    @classmethod
    def probe(cls, root: Path) -> Self | None:
        """A meter for the packages under `root`, or None if the kernel has no such events or does not open them."""
        source = root / "bus" / "event_source" / "devices" / "power"
        descriptors: list[int] = []
        try:
            scale = _scale(source)
            kind, config = int((source / "type").read_text()), _config(source)
            for processor in _processors((source / "cpumask").read_text()):
                descriptors.append(open_event(kind, config, processor))
            _joules(descriptors[0], scale)
        except (OSError, ValueError, IndexError) as error:
            _close(descriptors)
            if source.exists():
                log.info("perf's energy events are not used: %s", error)
            return None
        return cls(descriptors, scale)


def open_event(kind: int, config: int, processor: int) -> int:
    """The descriptor of a counter of all processes on one processor; close it when done. Raises OSError."""
    number = _CALL_NUMBERS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"the number of perf_event_open is not known for {platform.machine()}")
    head = struct.pack("=IIQ", kind, _ATTRIBUTES_BYTES, config)
    attributes = ctypes.create_string_buffer(head.ljust(_ATTRIBUTES_BYTES, b"\0"), _ATTRIBUTES_BYTES)
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    descriptor = library.syscall(
        ctypes.c_long(number),
        attributes,
        ctypes.c_int(-1),
        ctypes.c_int(processor),
        ctypes.c_int(-1),
        ctypes.c_ulong(_CLOEXEC),
    )
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"perf_event_open for processor {processor}: {os.strerror(code)}")
    return int(descriptor)


def _joules(descriptor: int, joules_per_count: float) -> float:
    count = os.read(descriptor, 8)
    if len(count) != 8:
        raise OSError(errno.EIO, f"perf gave {len(count)} bytes instead of 8")
    return int(struct.unpack("=Q", count)[0]) * joules_per_count


def _scale(source: Path) -> float:
    """Joules per count; raises ValueError for any other unit."""
    unit = (source / "events" / f"{EVENT}.unit").read_text().strip()
    scale = float((source / "events" / f"{EVENT}.scale").read_text())
    if unit != "Joules" or not 0 < scale < 1:
        raise ValueError(f"{EVENT} counts {scale:g} {unit}; only a share of Joules is understood")
    return scale


def _config(source: Path) -> int:
    """The event's number, where the kernel wants it in the low bits of `config`."""
    place = (source / "format" / "event").read_text().strip()
    event = re.fullmatch(r"event=(0x[0-9a-f]{1,8})\s*", (source / "events" / EVENT).read_text())
    if not re.fullmatch(r"config:0-\d+", place) or event is None:
        raise ValueError(f"{EVENT} is described in a way that is not understood ({place})")
    return int(event[1], 16)


def _processors(mask: str) -> list[int]:
    """The processors of a list such as `0,8` or `0-1`."""
    processors: list[int] = []
    for part in mask.strip().split(","):
        first, _, last = part.partition("-")
        processors += range(int(first), min(int(last or first), int(first) + _MOST_PROCESSORS) + 1)
    return processors[:_MOST_PROCESSORS]


def _close(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())
