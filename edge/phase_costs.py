"""The cost of one phase of a round on a device, as we measure, report and record it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

__all__ = ["Kind", "Phase", "PhaseCost"]

Kind = Literal["measured-board", "measured-rails", "battery", "calibrated", "modelled", "none"]
"""How far to trust the joules: measured at the board's input, measured on some rails (such as the processor's), read
from the battery's gauge, computed from processor time with watts that were measured on this board earlier, estimated,
or absent. `calibrated` is only told to coordinators that know it; others are told `modelled`.
"""
Phase = Literal["download", "evaluate", "train", "prune", "encode", "upload"]
"""`evaluate` is in answers to tasks that ask for it alone: older coordinators refuse a phase that they do not know."""

NonNegative = Annotated[float, msgspec.Meta(ge=0)]


class PhaseCost(msgspec.Struct, frozen=True):
    """Wall seconds and joules of one phase; joules are None if nothing measures or models them."""

    seconds: NonNegative
    joules: NonNegative | None
