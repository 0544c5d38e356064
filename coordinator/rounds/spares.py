"""The ready devices outside an open round's cohort, in the order in which the lots let them take a place. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from sparsyedge.coordinator.rounds.heap import Heap, heap_of, pop, push
from sparsyedge.coordinator.rounds.lots import lot
from sparsyedge.coordinator.rounds.table import Table

__all__ = ["Lot", "Spares"]

Lot: TypeAlias = tuple[bytes, str]


@dataclass(frozen=True)
class Spares:
    """Devices that were spare when they were added. Whoever draws one asks whether it still is."""

    lots: Heap[Lot]
    names: Table[None]
    """The devices in `lots`: each is there once, however often it comes and goes."""

    @classmethod
    def of(cls, devices: frozenset[str], *, seed: int, round_number: int) -> Spares:
        lots = heap_of((lot(device, seed=seed, round_number=round_number), device) for device in devices)
        return cls(lots, Table(dict.fromkeys(devices)))

    @property
    def first(self) -> str | None:
        """The device that comes next."""
        return self.lots.least[1] if self.lots is not None else None

    def add(self, device: str, *, seed: int, round_number: int) -> Spares:
        """With a device that has become spare."""
        if device in self.names:
            return self
        entry = (lot(device, seed=seed, round_number=round_number), device)
        return Spares(push(self.lots, entry), self.names.set(device, None))

    def drop_first(self) -> Spares:
        """Without the device that comes next."""
        assert self.lots is not None
        return Spares(pop(self.lots), self.names.without(self.lots.least[1]))
