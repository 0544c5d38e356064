"""Simulated devices on declared boards: what training costs them is a table, not what this machine takes.

Their reports say so: the kind of their joules is `modelled`, and they have the training phase alone. So figures, and
cohorts chosen by them, are the same on every machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated

import msgspec

from sparsyedge.edge.config import Section
from sparsyedge.edge.device.courier import Courier, Member
from sparsyedge.edge.phase_costs import PhaseCost
from sparsyedge.edge.protocol.channel import Channel
from sparsyedge.edge.protocol.messages import Accepted, Offer, Refused, Report

__all__ = ["BoardConfig", "BoardCourier", "boards_of", "modelled"]

Cost = Annotated[float, msgspec.Meta(gt=0, le=1e6)]


class BoardConfig(Section, frozen=True, kw_only=True):
    """One kind of board in a simulated fleet: how many devices are such boards, and what a training step costs them.

    Their reports then say this, marked as modelled, whatever the step takes on this machine.
    """

    share: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    """How many devices are such boards, relative to the other kinds; a lot decides which."""
    step_s: Cost
    """Seconds of a training step."""
    step_j: Cost | None = None
    """Joules of a training step; if left out, the board has no meter."""


def boards_of(devices: Iterable[str], boards: Mapping[str, BoardConfig], *, seed: int) -> dict[str, str]:
    """The board of each device, in the shares of the table; empty without a table."""
    shuffled = sorted(devices, key=lambda device: hashlib.sha256(f"{seed}/board/{device}".encode()).digest())
    names, whole = sorted(boards), sum(board.share for board in boards.values())
    found: dict[str, str] = {}
    reached = 0
    for name in names:
        start = len(shuffled) * reached // whole
        reached += boards[name].share
        found |= dict.fromkeys(shuffled[start : len(shuffled) * reached // whole], name)
    return found


def modelled(report: Report, board: str, cost: BoardConfig) -> Report:
    """The report of a device on this board."""
    joules = None if cost.step_j is None else report.steps * cost.step_j
    return msgspec.structs.replace(
        report,
        phases={"train": PhaseCost(report.steps * cost.step_s, joules)},
        energy_source=f"table: {board}",
        energy_kind="none" if joules is None else "modelled",
        energy_hz=0.0,
        idle_w=None,
    )


class BoardCourier(Courier):
    """Reports what the board's table says."""

    def __init__(self, channel: Channel, member: Member, *, board: str, cost: BoardConfig) -> None:
        super().__init__(channel, member)
        self._board = board
        self._cost = cost

    def deliver(self, offer: Offer, frame: bytes, *, wanted: Callable[[], bool]) -> Accepted | Refused:
        report = modelled(offer.report, self._board, self._cost)
        return super().deliver(msgspec.structs.replace(offer, report=report), frame, wanted=wanted)

    def report(self, report: Report) -> None:
        super().report(modelled(report, self._board, self._cost))
