"""Processor energy from the counters of Intel and AMD chips (RAPL), through the kernel's powercap files.

    class/powercap/intel-rapl:0/name                  package-0
    class/powercap/intel-rapl:0/energy_uj             counts up, wraps
    class/powercap/intel-rapl:0/max_energy_range_uj   where it wraps

We add up packages only: sub-zones (intel-rapl:0:0) are parts of them, and the zone `psys` contains them. Since the
side-channel fix of 2020, only root can read energy_uj; `chmod a+r` on it lets a device measure without root.
"""

from __future__ import annotations

import logging
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sparsyedge.edge.phase_costs import Kind
from sparsyedge.hardware.meters.energy_counter import MOST_W

__all__ = ["RaplMeter"]

log = logging.getLogger(__name__)

_TOP_ZONE = re.compile(r"intel-rapl:\d+")


@dataclass
class _Package:
    """One processor: its counter, where the counter wraps, and the last value seen, all in microjoules."""

    counter: Path
    range_uj: int
    last_uj: int

    def advance_uj(self) -> int:
        """Microjoules since the last call."""
        now_uj = int(self.counter.read_text())
        spent_uj = now_uj - self.last_uj
        self.last_uj = now_uj
        # Corrects one wrap, not two: a 262 kJ counter lasts 20 minutes at 200 W, longer than a phase.
        return spent_uj if spent_uj >= 0 else spent_uj + self.range_uj


class RaplMeter:
    """Joules of all processor packages, from all processes; excludes memory and board."""

    name: str = "rapl"
    kind: Kind = "measured-rails"
    priority: int = 30  # it measures the processor that trains; a hwmon sensor may sit on any rail
    sample_hz: float = 0.0

    def __init__(self, packages: list[_Package]) -> None:
        self._packages = packages
        self._total_uj = 0
        self._counting = False
        self._reported = False
        self._read_s = time.monotonic()
        self.lost_s = 0.0

    @classmethod
    def probe(cls, root: Path) -> Self | None:
        """A meter for every package under `root`, or None if there is none or we may not read a counter."""
        packages = []
        for zone in sorted((root / "class" / "powercap").glob("intel-rapl:*")):
            try:
                if _TOP_ZONE.fullmatch(zone.name) and (zone / "name").read_text().startswith("package"):
                    counter = zone / "energy_uj"
                    range_uj = int((zone / "max_energy_range_uj").read_text())
                    packages.append(_Package(counter, range_uj, int(counter.read_text())))
            except (OSError, ValueError) as error:
                log.info("RAPL is not used, since %s cannot be read: %s", zone, error)
                return None
        return cls(packages) if packages else None

    def start(self) -> None:
        """Count from here on."""
        if not self._counting:
            self._advance_uj()
            self._counting = True

    def stop(self) -> None:
        """Count up to here."""
        self.read_joules()
        self._counting = False

    def read_joules(self) -> float:
        """Joules counted so far between start and stop; adds nothing if a counter can no longer be read."""
        if self._counting:
            self._total_uj += self._advance_uj()
        return self._total_uj / 1e6

    def _advance_uj(self) -> int:
        last_s, self._read_s = self._read_s, time.monotonic()
        try:
            spent_uj = sum(package.advance_uj() for package in self._packages)
            # A counter that was set back looks like one that wrapped, and a whole range would be made up.
            most_uj = 1e6 * MOST_W * len(self._packages) * max(self._read_s - last_s, 1.0)
            if spent_uj > most_uj:
                raise ValueError(f"the counters advanced by {spent_uj / 1e6:.6g} J in {self._read_s - last_s:.3g} s")
            return spent_uj
        except (OSError, ValueError) as error:
            self.lost_s += self._read_s - last_s
            if not self._reported:
                log.warning("RAPL counter cannot be read, its joules are missing from here on: %s", error)
                self._reported = True
            return 0
