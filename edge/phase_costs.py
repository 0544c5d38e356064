"""What one phase of a round costs a device, as it is measured, reported and recorded."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

__all__ = ["Kind", "Phase", "PhaseCost"]

Kind = Literal["measured-board", "measured-rails", "battery", "modelled", "none"]
"""How far to trust joules: the whole board's input, some of its rails (a processor's is one), the battery's own gauge,
an estimate, nothing."""
Phase = Literal["download", "train", "prune", "encode", "upload"]

NonNegative = Annotated[float, msgspec.Meta(ge=0)]


class PhaseCost(msgspec.Struct, frozen=True):
    """Wall seconds and joules of one phase; joules are None where nothing measures or models them."""

    seconds: NonNegative
    joules: NonNegative | None
