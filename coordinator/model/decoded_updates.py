"""The decoded updates of the open round: where their entries are, and what was measured of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sparsyedge.coordinator.aggregation.measures import Measures
from sparsyedge.coordinator.aggregation.round_base import RoundBase
from sparsyedge.coordinator.aggregation.round_entries import EntryFile, Member, Place, RoundEntries
from sparsyedge.coordinator.model.update_checks import Verified
from sparsyedge.edge.wire.flat_frame import FlatUpdate

__all__ = ["Decoded", "DecodedUpdates"]


@dataclass(frozen=True)
class Decoded:
    """A decoded update."""

    place: Place
    measures: Measures
    entries: int
    """How many values travelled."""


class DecodedUpdates:
    """By hash, the updates that this process has decoded. A new process begins with none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: EntryFile | None = None
        self._found: dict[str, Decoded] = {}

    def __contains__(self, update: str) -> bool:
        return update in self._found

    def __getitem__(self, update: str) -> Decoded:
        return self._found[update]

    def add(self, update: str, verified: Verified, base: RoundBase) -> None:
        """Keep an update, by its hash, until the round is over."""
        if self._file is None:
            self._file = EntryFile(self._folder, base)
        if update not in self._found:
            place = self._file.append(verified.update)
            self._found[update] = Decoded(place, verified.measures, verified.update.entries)

    def entries(self, base: RoundBase, members: Iterable[tuple[str, float, Mapping[str, float]]]) -> RoundEntries:
        """These updates (hash, weight, scales by tensor) in this order."""
        assert self._file is not None
        found = [Member(self._found[update].place, weight, scales) for update, weight, scales in members]
        return RoundEntries(base, self._file, found)

    def update(self, update: str, base: RoundBase) -> FlatUpdate:
        """One update, whole."""
        assert self._file is not None
        found = self._found[update]
        listed = self._file.read(found.place, 0, self._file.blocks)
        others = base.flat.others.copy()
        others[self._file.moving] = self._file.read_others(found.place)
        return FlatUpdate(listed.positions, listed.values, others, found.entries)

    def clear(self) -> None:
        """Forget the round's updates, and give their space on disk back."""
        self._found.clear()
        if self._file is not None:
            self._file.close()
            self._file = None
