"""A run's record as plain tables, for scripts and notebooks."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import TracebackType
from typing import Self

from sparsyedge.coordinator.record.store import Store

__all__ = ["Row", "RunTables", "open_run"]

Row = dict[str, str | int | float | bool | None]
"""One row; all rows of a table have the same keys."""


def open_run(run_dir: Path | str) -> RunTables:
    """Open the record in a run directory, even while the run goes on; raises RunError if there is none."""
    return RunTables(Store.open(Path(run_dir)))


class RunTables:
    """Tables of one run. Every call reads the store again, so tables of a live run are up to date."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._store.close()

    def run(self) -> Row:
        """The run itself: name, state, rounds planned, times in Unix seconds, model id."""
        return dataclasses.asdict(self._store.run())

    def rounds(self) -> list[Row]:
        """A row per closed round: accuracy, sparsity, bytes, seconds, and the figures of docs/reference/metrics.md."""
        figures = self._store.metrics()
        names = dict.fromkeys(name for row in figures.values() for name in row)
        rows: list[Row] = []
        for record in self._store.rounds():
            found = figures.get(record.round, {})
            rows.append({**dict.fromkeys(names), **found, **dataclasses.asdict(record)})
        return rows

    def devices(self) -> list[Row]:
        """A row per device that the run has heard of: state, settings, updates, seconds, joules, bytes."""
        return [
            {
                **{
                    field.name: getattr(member, field.name)
                    for field in dataclasses.fields(member)
                    if field.name not in ("refusals", "adjustments", "evaluated", "data")
                },
                "settings": str(member.settings),
                "refused": sum(refusal.count for refusal in member.refusals),
            }
            for member in self._store.members()
        ]

    def phases(self) -> list[Row]:
        """A row per round, device and phase: seconds, joules, and how the joules were measured."""
        return [dataclasses.asdict(record) for record in self._store.phase_records()]

    def device_evaluations(self) -> list[Row]:
        """A row per evaluation on a device: samples, loss and accuracy of the model it was given and of its own."""
        return [dataclasses.asdict(record) for record in self._store.device_evaluations()]

    def data_notes(self) -> list[Row]:
        """A row per round and device that said how its data had changed: new, changed, removed and broken samples."""
        return [dataclasses.asdict(record) for record in self._store.data_notes()]

    def refusals(self) -> list[Row]:
        """A row per round, device and kind of refusal: the count and the last reason."""
        return [dataclasses.asdict(record) for record in self._store.refusals()]
