"""The boards that a step is modelled for; every figure names who published it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BOARDS", "Board"]


@dataclass(frozen=True)
class Board:
    """One core of a board: the analyser's name for it, its clock, and what its memory can move at best."""

    name: str
    core: str
    clock_ghz: float
    memory_gb_s: float
    clock_source: str
    memory_source: str


_CONFIG = "Raspberry Pi's table of config.txt defaults (arm_freq)"
_BUS = "data rate times a bus of 32 bits: an upper limit"
BOARDS = (
    Board("Pi Zero 2 W", "cortex-a53", 1.0, 3.6, _CONFIG, f"LPDDR2 at 450 MHz (sdram_freq): {_BUS}"),
    Board("Pi 3", "cortex-a53", 1.2, 3.6, _CONFIG, f"LPDDR2 at 450 MHz (sdram_freq): {_BUS}"),
    Board("Pi 4", "cortex-a72", 1.8, 5.6, _CONFIG, "STREAM, one core, published by sci-pi.org.uk (the bus: 12.8)"),
    Board("Pi 5", "neoverse-n1", 2.4, 17.1, "product brief", f"LPDDR4X-4267: {_BUS}"),
)
